"""The edge where data enters the library and errors leave it: files, arguments, errors."""
