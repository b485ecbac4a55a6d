"""The playground: visitors fill blanks with the newest checkpoint, in a process of its own.

Web imports `questions`; `coordinator.service.parts` starts `answerer`.
"""
