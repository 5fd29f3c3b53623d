"""What people start: the command line and the demonstration. Only here is anything printed."""
