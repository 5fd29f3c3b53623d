"""Files of this and other programs, each read into and written from one `Model`."""
