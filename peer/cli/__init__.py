"""The volunteers' commands: join, doctor, verify, name, tokenizer, corpus.

Only `manyhands` imports these modules; each calls the packages below it and maps errors to exit codes.
"""
