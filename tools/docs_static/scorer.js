// Search: pages with a word come before names of functions of which it is only a part ("OMP" in "compiled")
var Scorer = {
  score: r => r[6] === 'object' ? r[4] - 30 : r[4], // r: page, title, anchor, description, score, file, kind
  objNameMatch: 60, objPartialMatch: 6, objPrio: {0: 5, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
