//! The values of sampling parameters that a model's generation_config.json recommends.

use std::fmt;

use serde_json::{Map, Value};

use crate::sampling_params::{
    MIN_P, NumericParam, REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_K, TOP_P,
};

/// Defaults of parameters that a request does not set. The default has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Maximum generated tokens.
    pub max_new_tokens: Option<u32>,
    sampling: SamplingParams,
    /// The names and values in the file, in the order of their names.
    given: Vec<(&'static str, Value)>,
}

const MAX_NEW_TOKENS: &str = "max_new_tokens";

impl GenerationDefaults {
    /// Reads the members of generation_config.json that are parameters: `temperature`, `top_p`,
    /// `top_k`, `min_p`, `repetition_penalty` and `max_new_tokens`. Other members and nulls have no
    /// effect.
    ///
    /// # Errors
    /// A message that names the member whose value is not allowed.
    pub fn from_config(config: &Map<String, Value>) -> Result<Self, String> {
        let mut defaults = Self::default();
        for param in [&TEMPERATURE, &TOP_P, &MIN_P, &REPETITION_PENALTY] {
            defaults.take(param, config, |value| {
                value.as_f64().map(|value| value as f32)
            })?;
        }
        defaults.take(&TOP_K, config, Value::as_i64)?;
        if let Some(value) = config.get(MAX_NEW_TOKENS).filter(|value| !value.is_null()) {
            let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
            let tokens = tokens.filter(|tokens| *tokens > 0);
            let tokens = tokens.ok_or_else(|| not_allowed(MAX_NEW_TOKENS, value))?;
            defaults.max_new_tokens = Some(tokens);
            defaults.given.push((MAX_NEW_TOKENS, value.clone()));
        }
        defaults.given.sort_by_key(|(name, _)| *name);
        Ok(defaults)
    }

    fn take<T>(
        &mut self,
        param: &'static NumericParam<T>,
        config: &Map<String, Value>,
        read: fn(&Value) -> Option<T>,
    ) -> Result<(), String>
    where
        T: crate::range::Number,
    {
        let Some(value) = config.get(param.name).filter(|value| !value.is_null()) else {
            return Ok(());
        };
        let number = read(value).ok_or_else(|| not_allowed(param.name, value))?;
        param
            .assign(&mut self.sampling, Some(number))
            .map_err(|error| error.message)?;
        self.given.push((param.name, value.clone()));
        Ok(())
    }

    /// Returns the sampling parameters of a request that sets none.
    pub fn sampling(&self) -> SamplingParams {
        self.sampling.clone()
    }

    /// Returns the names and values in the file.
    pub fn given(&self) -> &[(&'static str, Value)] {
        &self.given
    }
}

impl fmt::Display for GenerationDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.given.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {value}")?;
        }
        Ok(())
    }
}

fn not_allowed(name: &str, value: &Value) -> String {
    format!("`{name}` cannot be {value}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<GenerationDefaults, String> {
        GenerationDefaults::from_config(config.as_object().unwrap())
    }

    #[test]
    fn parameters_are_read_and_other_members_ignored() {
        let config = json!({
            "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null, "do_sample": true,
            "repetition_penalty": 1.05, "max_new_tokens": 2048, "eos_token_id": [1, 2],
        });
        let defaults = read(&config).unwrap();
        let expected = SamplingParams {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            repetition_penalty: 1.05,
            ..SamplingParams::default()
        };
        assert_eq!(defaults.sampling(), expected);
        assert_eq!(defaults.max_new_tokens, Some(2048));
        let text =
            "max_new_tokens 2048, repetition_penalty 1.05, temperature 0.6, top_k 20, top_p 0.95";
        assert_eq!(defaults.to_string(), text);
        assert_eq!(read(&json!({})).unwrap(), GenerationDefaults::default());
    }

    #[test]
    fn values_that_are_not_allowed_are_refused_by_name() {
        for (name, value) in [
            ("temperature", json!(-1)),
            ("temperature", json!("hot")),
            ("top_p", json!(1.5)),
            ("top_k", json!(2.5)),
            ("repetition_penalty", json!(0)),
            ("max_new_tokens", json!(0)),
        ] {
            let error = read(&json!({name: value})).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }
}
