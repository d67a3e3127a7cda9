// Memory of one channel in this process: an image file (copy on write), behind it fp16 NaN.
#pragma once
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

class ChannelMemory {
public:
    ChannelMemory() = default;
    ChannelMemory(const ChannelMemory&) = delete;
    ChannelMemory& operator=(const ChannelMemory&) = delete;
    ~ChannelMemory() { unmap(); }

    uint8_t* bytes() const { return bytes_; }

    // Returns errno.
    int map(const char* path, uint64_t image_bytes, uint64_t channel_bytes) {
        unmap();
        const uint64_t page = sysconf(_SC_PAGESIZE), size = std::max(page, (channel_bytes + page - 1) / page * page);
        const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
        void* memory = mmap(nullptr, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return errno;
        bytes_ = static_cast<uint8_t*>(memory), mapped_ = size;
        const uint64_t image_size = (image_bytes + page - 1) / page * page;
        if (image_bytes) {
            const int file = open(path, O_RDONLY | O_CLOEXEC);
            if (file < 0) return errno;
            const bool failed = mmap(bytes_, image_size, access, flags, file, 0) == MAP_FAILED;
            const int error = errno;
            close(file);
            if (failed) return error;
            for (uint64_t byte = image_bytes; byte < image_size; ++byte) bytes_[byte] = byte % 2 ? 0x7E : 0x00;
        }
        // the same pages of NaN over and over: a page takes memory of its own only once it is written
        const int nan = nan_file();
        if (nan < 0) return errno;
        for (uint64_t byte = image_size; byte < size; byte += NAN_BYTES)
            if (mmap(bytes_ + byte, std::min(NAN_BYTES, size - byte), access, flags, nan, 0) == MAP_FAILED) return errno;
        return 0;
    }

private:
    static constexpr uint64_t NAN_BYTES = 4 << 20;

    void unmap() {
        if (bytes_) munmap(bytes_, mapped_);
        bytes_ = nullptr;
    }

    static int nan_file() {
        static const int file = [] {
            const int made = memfd_create("ringfly-nan", MFD_CLOEXEC);
            const std::vector<uint16_t> pattern(NAN_BYTES / 2, 0x7E00);
            if (made >= 0 && ::write(made, pattern.data(), NAN_BYTES) != ssize_t(NAN_BYTES)) return -1;
            return made;
        }();
        return file;
    }

    uint8_t* bytes_ = nullptr;
    uint64_t mapped_ = 0;
};
