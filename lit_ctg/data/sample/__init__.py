"""Sample corpora: seeded text written offline by grammars of our own, one module for each kind of corpus.

Every module has ``documents(split, *, seed, size, ...) -> Iterator[Document]``. Names of real places are facts;
every statement, person, company, battle, disease, book and review in these texts is invented.
"""
