"""Producers below their faces: messages become runs, runs travel, those who wait hear of it."""
