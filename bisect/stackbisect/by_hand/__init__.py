"""A bisection by hand: people try candidates and say good, bad or skip; the search is the same.

A verdict is a mark in the journal, and nothing else is kept: what comes next is asked of the pure
search with the marks for its observations, each candidate marked once.
"""
