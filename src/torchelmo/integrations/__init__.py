"""The interfaces of other libraries, so that their users can change an import and keep the code."""
