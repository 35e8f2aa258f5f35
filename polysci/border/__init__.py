"""Where data enters the library and errors leave it: files, arguments, unexpected errors."""
