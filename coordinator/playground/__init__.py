"""The playground: visitors fill blanks with the newest checkpoint, in a process of its own.

Web imports `questions`; the list of parts starts `answerer`.
"""
