"""The playground, in which visitors fill blanks in sentences with the newest checkpoint.

Web imports `questions`; `coordinator.service.parts` starts `answerer`, a separate process.
"""
