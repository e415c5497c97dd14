"""`optpipe-sim confirm`: predictions beside real runs on ranks of this machine, or on one device, rank by rank."""
