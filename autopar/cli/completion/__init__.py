"""What the shell is offered where TAB is pressed: answered without torch."""
