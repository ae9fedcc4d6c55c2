//! Arguments of filters, tests and methods, bound to parameters as in Python.

use minijinja::Error;
use minijinja::value::{Kwargs, Value};

use super::python_types::py_error;

/// The arguments of one call.
#[derive(Debug)]
pub(super) struct Args {
    values: Vec<Value>,
    named: Vec<(String, Value)>,
}

impl Args {
    pub(super) fn new(values: &[Value]) -> Self {
        let mut values = values.to_vec();
        let mut named = Vec::new();
        if values.last().is_some_and(Value::is_kwargs)
            && let Some(last) = values.pop()
            && let Ok(options) = Kwargs::try_from(last)
        {
            for name in options.args() {
                if let Ok(value) = options.peek::<Value>(name) {
                    named.push((name.to_owned(), value));
                }
            }
        }
        Self { values, named }
    }

    /// Takes the first argument: the value to which a filter or a test is applied.
    pub(super) fn take_first(&mut self) -> Value {
        if self.values.is_empty() {
            Value::UNDEFINED
        } else {
            self.values.remove(0)
        }
    }

    pub(super) fn positional(&self, index: usize) -> Option<&Value> {
        self.values.get(index)
    }

    pub(super) fn named(&self, name: &str) -> Option<Value> {
        let mut named = self.named.iter();
        named
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.clone())
    }

    pub(super) fn into_parts(self) -> (Vec<Value>, Vec<(String, Value)>) {
        (self.values, self.named)
    }

    /// Returns `first` and all arguments in the form of a call.
    pub(super) fn prepended_with(&self, first: Value) -> Vec<Value> {
        let mut all = vec![first];
        all.extend(self.values.iter().cloned());
        if !self.named.is_empty() {
            all.push(Kwargs::from_iter(self.named.iter().cloned()).into());
        }
        all
    }

    /// Binds the arguments to the parameters of the function `name`. A missing argument is `None`.
    pub(super) fn bind<const N: usize>(
        self,
        name: &str,
        parameters: [&str; N],
    ) -> Result<[Option<Value>; N], Error> {
        let given = self.values.len();
        if given > N {
            let message = format!("{name}() takes at most {N} arguments ({given} given)");
            return Err(py_error("TypeError", message));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.values) {
            *place = Some(value);
        }
        for (key, value) in self.named {
            let place = parameters.iter().position(|parameter| *parameter == key);
            let place = place.and_then(|index| bound.get_mut(index));
            match place {
                Some(place @ None) => *place = Some(value),
                Some(Some(_)) => {
                    let message = format!("{name}() got multiple values for argument '{key}'");
                    return Err(py_error("TypeError", message));
                }
                None => {
                    let message = format!("{name}() got an unexpected keyword argument '{key}'");
                    return Err(py_error("TypeError", message));
                }
            }
        }
        Ok(bound)
    }
}

/// Returns the value of a required parameter.
pub(super) fn needed(value: Option<Value>, name: &str) -> Result<Value, Error> {
    let message = || format!("missing a required argument: '{name}'");
    value.ok_or_else(|| py_error("TypeError", message()))
}

/// Returns an integer, or `default` if the argument is missing.
pub(super) fn count(value: Option<&Value>, default: i64) -> Result<i64, Error> {
    match value {
        None => Ok(default),
        Some(value) if value.kind() == minijinja::value::ValueKind::Bool => {
            Ok(i64::from(value.is_true()))
        }
        Some(value) => value
            .as_i64()
            .filter(|_| value.is_integer())
            .ok_or_else(|| {
                let message = format!("an integer is required, not '{value}'");
                py_error("TypeError", message)
            }),
    }
}

/// Returns a string, or a `TypeError`.
pub(super) fn text(value: &Value) -> Result<&str, Error> {
    value.as_str().ok_or_else(|| {
        let name = super::python_types::type_name(value);
        py_error("TypeError", format!("must be str, not {name}"))
    })
}
