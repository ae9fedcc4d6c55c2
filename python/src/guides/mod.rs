//! Guides that are followed token by token, and their masks, for `penstock.guidance`.
//!
//! What a step needs of all its guided sequences is one call, without the interpreter's lock and on
//! several threads: a mask takes tens of microseconds, and a millisecond where a state is new.

mod automaton;
mod budget;
mod closing;
mod grammar;
mod masks;
mod nearest;
#[cfg(test)]
mod tests;
mod threads;
mod tokenizer;
mod vocabulary;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cpu::tensor::Tensor;
use automaton::Automaton;
use budget::Growth;
use grammar::{Grammar, Place};
use masks::Masks;

/// Adds what the worker uses to the extension.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Vocabulary>()?;
    module.add_class::<Guide>()?;
    module.add_class::<Cursor>()?;
    module.add_function(wrap_pyfunction!(advance_cursors, module)?)?;
    module.add_function(wrap_pyfunction!(fill_masks, module)?)
}

/// A model's tokens, and the masks of automata over them that are kept.
#[pyclass(frozen)]
struct Vocabulary {
    tokens: Arc<vocabulary::Vocabulary>,
    masks: Arc<Masks>,
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

    /// The bytes of each token; empty for those that stand for no text.
    fn texts<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let ids = (0_u32..).take(self.tokens.size());
        ids.map(|token| PyBytes::new(py, self.tokens.text(token)))
            .collect()
    }

    /// The fewest tokens that spell a text; None if none do.
    fn segmented(&self, text: &[u8]) -> Option<Vec<u32>> {
        self.tokens.segmented(text)
    }

    /// The most tokens that an ending of a text needs, at the fewest. Endings that no tokens spell
    /// are left out.
    fn endings(&self, text: &[u8]) -> usize {
        self.tokens.endings(text)
    }

    /// Bytes of the longest of the shortest texts of a grammar's lexemes, the most bytes that one
    /// of them needs to its end, from wherever it is, and how many were left out for having more
    /// than `most` states. Raises ValueError if the grammar cannot be followed.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn reach(
        &self,
        py: Python<'_>,
        grammar: String,
        most: usize,
    ) -> PyResult<(usize, usize, usize)> {
        let found = py.detach(|| grammar::reach(&self.tokens, &grammar, most));
        let found = found.map_err(PyValueError::new_err)?;
        Ok((found.shortest, found.farthest, found.untold))
    }

    /// The tokens that lead from `state` of a table, int16 [states, 256] (the state after a byte, or
    /// -1), to one of the states `wanted`, and to which. Raises ValueError if there is no such state.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn leading(
        &self,
        py: Python<'_>,
        table: &[u8],
        state: usize,
        wanted: Vec<usize>,
    ) -> PyResult<Vec<(u32, usize)>> {
        let (cells, _) = table.as_chunks::<2>();
        let states = cells.len() / 256;
        if wanted.iter().chain([&state]).any(|&state| state >= states) {
            return Err(PyValueError::new_err("there is no such state in the table"));
        }
        let next = |state: usize, byte: u8| {
            let after = i16::from_ne_bytes(cells[state * 256 + usize::from(byte)]);
            usize::try_from(after).ok().filter(|&after| after < states)
        };
        Ok(py.detach(|| {
            let mut asked = vec![false; states];
            wanted.iter().for_each(|&state| asked[state] = true);
            let mut found = Vec::new();
            self.tokens.walk(next, state, |token, after| {
                if asked[after] {
                    found.push((token, after));
                }
            });
            found
        }))
    }

    /// What the tokens without a text are called.
    fn marks<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, u32)> {
        let marks = self.tokens.marks();
        marks
            .map(|(name, token)| (PyBytes::new(py, name), token))
            .collect()
    }
}

enum Kind {
    Automaton(Automaton),
    Grammar(Box<Grammar>),
}

/// A guide that any number of sequences may follow.
#[pyclass(frozen)]
struct Guide {
    kind: Arc<Kind>,
    size: usize,
}

#[pymethods]
impl Guide {
    /// Of an automaton's arrays. Raises ValueError if they do not fit each other.
    #[staticmethod]
    fn of_automaton(
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
            kind: Arc::new(Kind::Automaton(made)),
        })
    }

    /// Of a grammar in llguidance's form; `growth` (each, once, jump, choices) if documents are to be
    /// completed. Raises ValueError if it cannot be followed.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn of_grammar(
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
        let made = py.detach(|| Grammar::new(tokens, &text, growth));
        Ok(Self {
            size: 20 * text.len() + (1 << 16), // as measured, about
            kind: Arc::new(Kind::Grammar(Box::new(
                made.map_err(PyValueError::new_err)?,
            ))),
        })
    }

    /// Tokens of a short whole text.
    #[getter]
    fn shortest(&self) -> usize {
        match &*self.kind {
            Kind::Automaton(automaton) => automaton.shortest(),
            Kind::Grammar(grammar) => grammar.shortest,
        }
    }

    /// Bytes in memory, about.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// Tokens that complete a text which has begun so, 0 if it is not to be completed; None if none
    /// does, as far as is known.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn needed(&self, py: Python<'_>, begun: Vec<u8>) -> Option<usize> {
        py.detach(|| match &*self.kind {
            Kind::Automaton(automaton) => automaton.needed(&begun),
            Kind::Grammar(grammar) => grammar.needed(&begun),
        })
    }

    /// A cursor before the first token, behind `begun` if the text has begun with it. `ends`: the
    /// tokens that may end the sequence; `most`: how many it may have generated in all.
    #[pyo3(signature = (ends, most, begun = Vec::new()))]
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn start(&self, py: Python<'_>, ends: Vec<u32>, most: i64, begun: Vec<u8>) -> Cursor {
        let kind = self.kind.clone();
        let at = py.detach(|| match &*kind {
            Kind::Automaton(automaton) => At::State(automaton.after(0, &begun)),
            Kind::Grammar(grammar) => At::Place(Box::new(grammar.start(&begun, most))),
        });
        Cursor {
            kind,
            followed: Mutex::new(Followed {
                ends,
                left: most,
                at,
            }),
        }
    }
}

/// Where one sequence is in its guide: a function of the tokens that it emitted.
#[pyclass(frozen)]
struct Cursor {
    kind: Arc<Kind>,
    followed: Mutex<Followed>,
}

struct Followed {
    ends: Vec<u32>,
    /// Tokens that the sequence may still generate.
    left: i64,
    at: At,
}

enum At {
    /// Of an automaton; None after an end token, or after a token that no mask allowed.
    State(Option<usize>),
    Place(Box<Place>),
}

#[pymethods]
impl Cursor {
    /// Takes emitted tokens. One that no mask allowed ends the guide.
    fn advance(&self, py: Python<'_>, tokens: Vec<i64>) {
        py.detach(|| tokens.into_iter().for_each(|token| self.take(token)));
    }

    /// Whether the text may end here; not once it has.
    #[getter]
    fn whole(&self, py: Python<'_>) -> bool {
        py.detach(|| match (&*self.kind, &mut self.lock().at) {
            (Kind::Automaton(automaton), At::State(Some(state))) => automaton.whole(*state),
            (Kind::Grammar(_), At::Place(place)) => place.whole(),
            _ => false,
        })
    }

    /// Whether nothing of the text can follow: it is over, or a token came that no mask allowed.
    #[getter]
    fn ended(&self, py: Python<'_>) -> bool {
        py.detach(|| match &self.lock().at {
            At::State(state) => state.is_none(),
            At::Place(place) => place.ended(),
        })
    }

    /// The mask of the next token, of so many words, and whether the tokens left forbid what the
    /// guide alone would allow. Raises ValueError if the guide cannot go on.
    fn mask<'py>(&self, py: Python<'py>, words: usize) -> PyResult<(Bound<'py, PyBytes>, bool)> {
        let (row, closing) = py.detach(|| {
            let mut row = vec![0; words];
            let closing = self.fill(&mut row);
            (row, closing)
        });
        let bytes: Vec<u8> = row.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok((
            PyBytes::new(py, &bytes),
            closing.map_err(PyValueError::new_err)?,
        ))
    }

    /// Another sequence at the same place.
    fn copy(&self, py: Python<'_>) -> Self {
        py.detach(|| {
            let followed = self.lock();
            let at = match &followed.at {
                At::State(state) => At::State(*state),
                At::Place(place) => At::Place(Box::new(place.copy())),
            };
            let (ends, left) = (followed.ends.clone(), followed.left);
            Self {
                kind: self.kind.clone(),
                followed: Mutex::new(Followed { ends, left, at }),
            }
        })
    }
}

impl Cursor {
    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, token: i64) {
        let mut followed = self.lock();
        followed.left -= 1;
        let left = followed.left;
        let token = u32::try_from(token)
            .ok()
            .filter(|token| !followed.ends.contains(token));
        match (&*self.kind, &mut followed.at) {
            (Kind::Automaton(automaton), At::State(state)) => {
                *state = state
                    .zip(token)
                    .and_then(|(state, token)| automaton.step(state, token));
            }
            (Kind::Grammar(grammar), At::Place(place)) => match token {
                Some(token) => grammar.advance(place, token, left),
                None => place.end(),
            },
            _ => {}
        }
    }

    /// Writes the mask of the next token; whether the tokens left forbid what the guide alone
    /// would allow. The error says why the guide cannot go on: then everything is allowed.
    fn fill(&self, row: &mut [u32]) -> Result<bool, String> {
        let mut followed = self.lock();
        let followed = &mut *followed;
        let (whole, closing) = match (&*self.kind, &mut followed.at) {
            (Kind::Automaton(automaton), At::State(Some(state))) => {
                let closing = automaton.fill(*state, followed.left, row);
                (automaton.whole(*state), closing)
            }
            (Kind::Grammar(grammar), At::Place(place)) => {
                let filled = grammar.fill(place, followed.left, row);
                filled.inspect_err(|_| row.fill(u32::MAX))?
            }
            _ => {
                row.fill(0);
                (true, false)
            }
        };
        if whole {
            budget::set(row, &followed.ends);
        }
        Ok(closing)
    }
}

/// Of which rows the tokens left forbid something, and which cannot go on, and why.
type Told = (Vec<usize>, Vec<(usize, String)>);

/// Has each cursor take a token.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn advance_cursors(py: Python<'_>, cursors: Vec<Py<Cursor>>, tokens: Vec<i64>) -> PyResult<()> {
    if cursors.len() != tokens.len() {
        return Err(PyValueError::new_err(
            "there must be a token for each cursor",
        ));
    }
    py.detach(|| {
        threads::each(cursors.len(), |index| {
            cursors[index].get().take(tokens[index]);
        });
    });
    Ok(())
}

/// Writes the masks of the next tokens, bit i of word i / 32 for token i, into `rows` [cursors,
/// words] int32; those without a cursor stay as they are. Returns the indices of those whose tokens left forbid what the guide alone would
/// allow, and of those that cannot go on, with the reason: to them all is allowed.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
fn fill_masks(py: Python<'_>, cursors: Vec<Option<Py<Cursor>>>, rows: Tensor) -> PyResult<Told> {
    let words = match *rows.shape() {
        [count, words] if count == cursors.len() => words,
        _ => return Err(PyValueError::new_err("there must be a row for each cursor")),
    };
    let masks = rows.slice_mut::<u32>()?;
    let filled = py.detach(|| {
        let rows = masks.chunks_exact_mut(words.max(1)).map(Mutex::new);
        let rows: Vec<Mutex<&mut [u32]>> = rows.collect();
        threads::each(rows.len(), |index| {
            let mut row = rows[index].lock().unwrap_or_else(PoisonError::into_inner);
            match &cursors[index] {
                Some(cursor) => cursor.get().fill(&mut row),
                None => Ok(false),
            }
        })
    });
    let mut told = (Vec::new(), Vec::new());
    for (index, outcome) in filled.into_iter().enumerate() {
        match outcome {
            Ok(true) => told.0.push(index),
            Ok(false) => {}
            Err(error) => told.1.push((index, error)),
        }
    }
    Ok(told)
}
