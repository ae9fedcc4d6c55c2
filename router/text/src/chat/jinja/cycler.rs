//! `cycler` and `joiner`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Object, ObjectRepr, Value};
use minijinja::{Error, ErrorKind, State};

use super::args::Args;
use super::python_types::py_error;

/// A `cycler`, which returns its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

pub(super) fn cycler(args: Args) -> Result<Value, Error> {
    let (items, _) = args.into_parts();
    if items.is_empty() {
        return Err(py_error(
            "RuntimeError",
            "at least one item has to be provided",
        ));
    }
    let at = AtomicUsize::new(0);
    Ok(Value::from_object(Cycler { items, at }))
}

impl Cycler {
    fn current(&self) -> Value {
        let at = self.at.load(Ordering::Relaxed) % self.items.len().max(1);
        self.items.get(at).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        _: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// A `joiner`, which returns an empty string at the first call and the separator at later calls.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    calls: AtomicUsize,
}

pub(super) fn joiner(args: Args) -> Result<Value, Error> {
    let [separator] = args.bind("joiner", ["sep"])?;
    Ok(Value::from_object(Joiner {
        separator: separator.unwrap_or_else(|| Value::from(", ")),
        calls: AtomicUsize::new(0),
    }))
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        let first = self.calls.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(if first {
            Value::from("")
        } else {
            self.separator.clone()
        })
    }
}
