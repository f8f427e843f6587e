"""Reading and writing files: whole or absent when written, with line numbers when read."""
