"""The timeline of a run: who computed, waited and sent what, and when.

* the run as lanes: `lanes`;
* a page for the browser: `page`, and the files beside it, which become one;
* a picture for print: `picture`.

It imports `record` and what is below.
"""
