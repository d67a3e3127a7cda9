"""Host side of Ringfly: compiler, driver, generation and the command ``ringfly``."""
