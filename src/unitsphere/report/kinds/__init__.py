"""What each kind of run or study shows: one module builds its page."""
