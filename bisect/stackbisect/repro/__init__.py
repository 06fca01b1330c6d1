"""From a culprit to one small file that shows it: locate, capture, shrink, emit, prove.

Two stacks run the user's command traced; the first operation whose inputs match and whose outputs
differ is captured in the good one, becomes a folder of its own (`form`), is made smaller while it
still tells the stacks apart, and is run in both, several times, before it is handed over.
"""
