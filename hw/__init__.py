"""Gateware: everything that becomes logic on the board, each part with its golden model beside it."""
