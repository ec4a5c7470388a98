"""Speed, measured so that anyone can repeat it: arms interleaved in one process, with the noise."""
