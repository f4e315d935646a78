"""Recovery: from whatever files a stop or a crash left behind to a store that can be served."""
