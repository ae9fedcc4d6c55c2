//! Grammars, their matchers and their token masks, for `penstock.grammar`.
//!
//! Threads compute masks as soon as the previous token is known. A mask takes tens of microseconds,
//! a millisecond in a new state, and longer for some grammars. A step uses the masks that are
//! ready.

mod automaton;
mod budget;
mod completion;
mod lexeme_search;
mod llguidance_grammar;
mod mask_cache;
mod mask_threads;
mod matcher;
mod next_mask;
#[cfg(test)]
mod tests;
mod tokenizer;
mod vocabulary;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cpu::memory::{self, Views};
use crate::cpu::tensor::Tensor;
use automaton::Automaton;
use budget::Growth;
use llguidance_grammar::LlguidanceGrammar;
use mask_cache::MaskCache;
use matcher::{Backend, Position, SequenceMatcher, SharedGrammar};
use next_mask::{MaskSource, NextMask};

/// Adds the classes and functions of this module to the extension.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Vocabulary>()?;
    module.add_class::<CompiledGrammar>()?;
    module.add_class::<Matcher>()?;
    module.add_function(wrap_pyfunction!(advance_matchers, module)?)?;
    module.add_function(wrap_pyfunction!(begin_masks, module)?)?;
    module.add_function(wrap_pyfunction!(wait_for_masks, module)?)?;
    module.add_function(wrap_pyfunction!(fill_masks, module)?)
}

/// A model's vocabulary and the cached masks of automata over it.
#[pyclass(frozen)]
struct Vocabulary {
    tokens: Arc<vocabulary::Vocabulary>,
    masks: Arc<MaskCache>,
}

#[pymethods]
impl Vocabulary {
    /// Reads a tokenizer.json for a model of `size` logits. Raises ValueError.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn new(py: Python<'_>, path: PathBuf, size: usize) -> PyResult<Self> {
        let read = py.detach(|| vocabulary::Vocabulary::read(&path, size));
        Ok(Self {
            tokens: Arc::new(read.map_err(PyValueError::new_err)?),
            masks: Arc::default(),
        })
    }

    /// Returns the bytes of each token; empty for tokens without text.
    fn texts<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let ids = (0_u32..).take(self.tokens.size());
        ids.map(|token| PyBytes::new(py, self.tokens.text(token)))
            .collect()
    }

    /// Returns the fewest tokens that spell a text; None if none do.
    fn shortest_tokenization(&self, text: &[u8]) -> Option<Vec<u32>> {
        self.tokens.shortest_tokenization(text)
    }

    /// Returns the maximum, over all suffixes of a text, of the fewest tokens that spell the
    /// suffix. Suffixes that no tokens spell are skipped.
    fn max_suffix_tokens(&self, text: &[u8]) -> usize {
        self.tokens.max_suffix_tokens(text)
    }

    /// Returns (shortest, farthest, unsearched) of a grammar's lexemes: bytes of the longest of
    /// their shortest texts, the most bytes to an end from any state, and the number of lexemes
    /// skipped for having more than `most` states. Raises ValueError for an invalid grammar.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn end_distances(
        &self,
        py: Python<'_>,
        grammar: String,
        most: usize,
    ) -> PyResult<(usize, usize, usize)> {
        let found = py.detach(|| llguidance_grammar::end_distances(&self.tokens, &grammar, most));
        let found = found.map_err(PyValueError::new_err)?;
        Ok((found.shortest, found.farthest, found.unsearched))
    }

    /// Returns the tokens that lead from `state` to one of the states `targets`, each with its
    /// target. `table` is int16 [states, 256]: the state after a byte, or -1. Raises ValueError for
    /// a state that is not in the table.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn tokens_leading_to(
        &self,
        py: Python<'_>,
        table: &[u8],
        state: usize,
        targets: Vec<usize>,
    ) -> PyResult<Vec<(u32, usize)>> {
        let (cells, _) = table.as_chunks::<2>();
        let states = cells.len() / 256;
        if targets.iter().chain([&state]).any(|&state| state >= states) {
            return Err(PyValueError::new_err("there is no such state in the table"));
        }
        let next = |state: usize, byte: u8| {
            let after = i16::from_ne_bytes(cells[state * 256 + usize::from(byte)]);
            usize::try_from(after).ok().filter(|&after| after < states)
        };
        Ok(py.detach(|| {
            let mut is_target = vec![false; states];
            targets.iter().for_each(|&state| is_target[state] = true);
            let mut found = Vec::new();
            self.tokens.walk(next, state, |token, after| {
                if is_target[after] {
                    found.push((token, after));
                }
            });
            found
        }))
    }

    /// Returns the names and ids of the tokens without text.
    fn special_tokens<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, u32)> {
        let marks = self.tokens.special_tokens();
        marks
            .map(|(name, token)| (PyBytes::new(py, name), token))
            .collect()
    }
}

/// A compiled grammar, shared by any number of sequences.
#[pyclass(frozen)]
struct CompiledGrammar {
    shared: Arc<SharedGrammar>,
    size: usize,
}

#[pymethods]
impl CompiledGrammar {
    /// Builds a grammar from an automaton's arrays. Raises ValueError if they do not fit each
    /// other.
    #[staticmethod]
    fn from_automaton(
        vocabulary: &Vocabulary,
        states: usize,
        data: &[u8],
        complete: bool,
    ) -> PyResult<Self> {
        let (tokens, masks) = (vocabulary.tokens.clone(), vocabulary.masks.clone());
        let made = Automaton::new(tokens, masks, states, data, complete);
        let made = made.ok_or_else(|| PyValueError::new_err("the automaton is none"))?;
        Ok(Self {
            size: made.size(),
            shared: SharedGrammar::new(Backend::Automaton(made)),
        })
    }

    /// Compiles a grammar in llguidance's form; `growth` (each, once, jump, choices) if documents
    /// are to be completed. Raises ValueError for a grammar that cannot be compiled.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn from_llguidance(
        py: Python<'_>,
        vocabulary: &Vocabulary,
        text: String,
        growth: Option<(usize, usize, usize, usize)>,
    ) -> PyResult<Self> {
        let growth = growth.map(|(each, once, jump, choices)| Growth {
            each,
            once,
            jump,
            choices,
        });
        let tokens = vocabulary.tokens.clone();
        let made = py.detach(|| LlguidanceGrammar::new(tokens, &text, growth));
        Ok(Self {
            size: 20 * text.len() + (1 << 16), // measured, approximate
            shared: SharedGrammar::new(Backend::Llguidance(Box::new(
                made.map_err(PyValueError::new_err)?,
            ))),
        })
    }

    /// Tokens of a short complete text.
    #[getter]
    fn shortest(&self) -> usize {
        match &self.shared.backend {
            Backend::Automaton(automaton) => automaton.shortest(),
            Backend::Llguidance(grammar) => grammar.shortest,
        }
    }

    /// Approximate size in bytes.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// Returns the tokens that complete a text that begins with `prefix`, 0 if texts are not
    /// completed; None if no completion is known.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn needed(&self, py: Python<'_>, prefix: Vec<u8>) -> Option<usize> {
        py.detach(|| match &self.shared.backend {
            Backend::Automaton(automaton) => automaton.needed(&prefix),
            Backend::Llguidance(grammar) => grammar.needed(&prefix),
        })
    }

    /// Returns a matcher behind `prefix`, before the first token. `ends`: the end tokens of the
    /// sequence; `most`: its maximum number of generated tokens.
    #[pyo3(signature = (ends, most, prefix = Vec::new()))]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn start(&self, py: Python<'_>, ends: Vec<u32>, most: i64, prefix: Vec<u8>) -> Matcher {
        let shared = self.shared.clone();
        let position = py.detach(|| match &shared.backend {
            Backend::Automaton(automaton) => Position::Automaton(automaton.after(0, &prefix)),
            Backend::Llguidance(grammar) => {
                Position::Llguidance(Box::new(grammar.start(&prefix, most)))
            }
        });
        Matcher(Arc::new(SequenceMatcher::new(shared, ends, most, position)))
    }
}

/// The matcher of one sequence. Its state is a function of the tokens that the sequence emitted.
#[pyclass(frozen)]
struct Matcher(Arc<SequenceMatcher>);

#[pymethods]
impl Matcher {
    /// Advances by emitted tokens. A token that no mask allowed ends the grammar.
    fn advance(&self, py: Python<'_>, tokens: Vec<i64>) {
        py.detach(|| tokens.into_iter().for_each(|token| self.0.take(token)));
    }

    /// Whether the text may end here; false once it has ended.
    #[getter]
    fn is_accepting(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_accepting())
    }

    /// Whether the text is over: it has ended, or a token came that no mask allowed.
    #[getter]
    fn ended(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.ended())
    }

    /// Returns the mask of the next token, of `words` 32-bit words, and whether the token budget
    /// forbids tokens that the grammar allows. Raises ValueError if the grammar cannot continue.
    fn mask<'py>(&self, py: Python<'py>, words: usize) -> PyResult<(Bound<'py, PyBytes>, bool)> {
        let (row, closing) = py.detach(|| {
            let mut row = vec![0; words];
            let closing = self.0.fill(&mut row);
            (row, closing)
        });
        let bytes: Vec<u8> = row.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok((
            PyBytes::new(py, &bytes),
            closing.map_err(PyValueError::new_err)?,
        ))
    }

    /// Returns a copy for another sequence.
    fn copy(&self, py: Python<'_>) -> Self {
        py.detach(|| Self(Arc::new(self.0.copy())))
    }
}

/// The result of a step's masks: indices of rows narrowed by the token budget, of rows whose
/// grammar cannot continue, with the reason, and of rows whose mask is late.
type FilledMasks = (Vec<usize>, Vec<(usize, String)>, Vec<usize>);

/// Advances each matcher by one token.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn advance_matchers(matchers: Vec<Py<Matcher>>, tokens: Vec<i64>) -> PyResult<()> {
    if matchers.len() != tokens.len() {
        return Err(PyValueError::new_err(
            "there must be a token for each matcher",
        ));
    }
    for (matcher, token) in matchers.iter().zip(tokens) {
        matcher.get().0.take(token);
    }
    Ok(())
}

/// Starts computing the masks of the next tokens, of `words` 32-bit words, unless started already.
/// Does not wait.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn begin_masks(py: Python<'_>, matchers: Vec<Py<Matcher>>, words: usize) {
    py.detach(|| {
        for matcher in &matchers {
            next_mask::begin(&matcher.get().0, |sequence| &sequence.next_mask, words);
        }
    });
}

/// Waits up to `seconds` for started masks. Returns whether none is still running.
#[pyfunction]
#[pyo3(signature = (matchers, seconds = None))]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn wait_for_masks(py: Python<'_>, matchers: Vec<Py<Matcher>>, seconds: Option<f64>) -> bool {
    let longest = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let masks: Vec<&NextMask> = matchers
        .iter()
        .map(|matcher| &matcher.get().0.next_mask)
        .collect();
    py.detach(|| next_mask::wait(&masks, longest))
}

/// Writes the ready masks of the next tokens into `rows` [matchers, words] int32, bit i % 32 of
/// word i / 32 for token i; rows without a matcher are unchanged. Returns the indices of the rows
/// narrowed by the token budget, of those whose grammar cannot continue, with the reason, and of
/// those whose mask is late. The last two kinds of rows allow every token.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn fill_masks(
    py: Python<'_>,
    matchers: Vec<Option<Py<Matcher>>>,
    rows: Tensor,
) -> PyResult<FilledMasks> {
    let words = match *rows.shape() {
        [count, words] if count == matchers.len() => words,
        _ => {
            return Err(PyValueError::new_err(
                "there must be a row for each matcher",
            ));
        }
    };
    py.detach(|| {
        let mut memory = memory::lock();
        let masks = Views::new(&mut memory).slice_mut::<u32>(&rows)?;
        let mut filled = FilledMasks::default();
        let rows = masks.chunks_exact_mut(words.max(1));
        for (index, (matcher, row)) in matchers.iter().zip(rows).enumerate() {
            let Some(matcher) = matcher else { continue };
            match matcher.get().0.next_mask.ready() {
                Some(made) => {
                    automaton::write(&made.row, row);
                    match made.outcome {
                        Ok(true) => filled.0.push(index),
                        Ok(false) => {}
                        Err(error) => filled.1.push((index, error)),
                    }
                }
                None => {
                    row.fill(u32::MAX);
                    filled.2.push(index);
                }
            }
        }
        Ok(filled)
    })
}
