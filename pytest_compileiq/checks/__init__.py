"""One module a mark: a subject and its measurement go in, a verdict comes out."""
