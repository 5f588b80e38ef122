"""The report of ``ray-h5 inspect`` as one page of HTML, which needs no other file and no network."""
