//! `penstock tgi`: `penstock serve` with the command line of TGI's launcher. One table lists every
//! flag and variable; each is translated or refused by name.

mod convert;
mod table;

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, ArgMatches};

pub use self::table::{Check, Convert, FlagMapping, Form, Limit, ROWS, Row};
use crate::error::{Failure, Outcome};
use crate::limits::Limits;
use crate::settings::{SettingsError, Variables};

/// The default address of TGI's launcher; a container's ports must be reachable from outside.
const HOST: &str = "0.0.0.0";

/// A translated command line of TGI's launcher.
#[derive(Debug, Default)]
pub struct Translation {
    /// `penstock serve ...`.
    pub argv: Vec<OsString>,
    /// Limits that `penstock serve` has no flags for.
    pub limits: Limits,
    /// Messages for the user: settings without effect, each with the reason.
    pub notes: Vec<String>,
}

/// Translates the arguments after `penstock tgi` and the variables of TGI's launcher.
///
/// # Errors
/// A flag that TGI's launcher does not have, an invalid value, or a refused setting; and a request
/// for help.
pub fn translate(words: &[OsString], variables: &Variables) -> Result<Translation, SettingsError> {
    let name = OsString::from("penstock tgi");
    let matches = parser().try_get_matches_from([&name].into_iter().chain(words))?;
    let mut translation = Translation {
        argv: vec!["penstock".into(), "serve".into()],
        ..Translation::default()
    };
    for row in ROWS {
        for value in row.values(&matches, variables)? {
            translation.take(row, &value)?;
        }
    }
    let listens = OsStr::new("--host");
    if !translation.argv.iter().any(|word| word == listens) {
        translation.push("host", HOST);
    }
    Ok(translation)
}

fn parser() -> clap::Command {
    clap::Command::new("penstock tgi")
        .about("Serve with the flags and variables of text-generation-launcher (docs/tgi.md)")
        .disable_version_flag(true)
        .args(ROWS.iter().filter_map(Row::arg))
}

impl Row {
    /// Returns the name of the variable that also sets it.
    pub fn variable(&self) -> Option<String> {
        let has = !matches!(self.form, Form::FlagOnly(_));
        has.then(|| self.flag.to_uppercase().replace('-', "_"))
    }

    /// Returns a description of its effect.
    pub fn description(&self) -> String {
        match self.mapping {
            FlagMapping::Flag(flag) => format!("`--{flag}`"),
            FlagMapping::Converted(flag, _, how) => format!("`--{flag}`; {how}"),
            FlagMapping::Fixed(flag, value) => format!("`--{flag} {value}`"),
            FlagMapping::Limit(_, what) => format!("applied: {what}"),
            FlagMapping::NoEffect(_, why) => format!("no effect: {why}"),
            FlagMapping::Refused(why) => format!("refused: {why}"),
        }
    }

    fn arg(&self) -> Option<Arg> {
        let arg = Arg::new(self.flag).long(self.flag).help(self.description());
        match self.form {
            Form::Value => Some(arg.action(ArgAction::Append)),
            Form::Short(letter) => Some(arg.short(letter).action(ArgAction::Append)),
            Form::Switch => Some(arg.action(ArgAction::SetTrue)),
            Form::FlagOnly(letter) => Some(arg.short(letter).action(ArgAction::SetTrue)),
            Form::Variable => None,
        }
    }

    /// Returns its values: from the command line, else from the variable.
    fn values(&self, matches: &ArgMatches, variables: &Variables) -> Outcome<Vec<String>> {
        let switch = matches!(self.form, Form::Switch | Form::FlagOnly(_));
        if switch && matches.get_flag(self.flag) {
            return Ok(vec![String::new()]);
        }
        let typed = match self.form {
            Form::Value | Form::Short(_) => matches.get_many::<String>(self.flag),
            _ => None,
        };
        if let Some(typed) = typed {
            return Ok(typed.cloned().collect());
        }
        let Some(variable) = self.variable() else {
            return Ok(Vec::new());
        };
        let set = variables.get(OsStr::new(&variable));
        let set = set.map(|value| value.to_string_lossy().into_owned());
        // In TGI, clap takes an empty variable as a value, which is never intended.
        let Some(value) = set.filter(|value| !value.is_empty()) else {
            return Ok(Vec::new());
        };
        if switch && !convert::truth(&value).map_err(|why| self.wrong(&value, &why))? {
            return Ok(Vec::new());
        }
        Ok(vec![value])
    }

    fn wrong(&self, value: &str, why: &str) -> Failure {
        Failure::usage(format!("{} {value}: {why}.", self.name()))
    }

    fn name(&self) -> String {
        match (self.form, self.variable()) {
            (Form::Variable, Some(variable)) => variable,
            _ => format!("--{}", self.flag),
        }
    }
}

impl Translation {
    fn take(&mut self, row: &Row, value: &str) -> Outcome<()> {
        let wrong = |why: String| row.wrong(value, &why);
        match row.mapping {
            FlagMapping::Flag(flag) => self.push(flag, value),
            FlagMapping::Converted(flag, convert, _) => {
                if let Some(value) = convert(value).map_err(wrong)? {
                    self.push(flag, &value);
                }
            }
            FlagMapping::Fixed(flag, value) => self.push(flag, value),
            FlagMapping::Limit(limit, _) => limit(&mut self.limits, value).map_err(wrong)?,
            FlagMapping::NoEffect(check, why) => {
                check(value).map_err(|wrong| row.wrong(value, &format!("{wrong}; {why}")))?;
                self.notes
                    .push(format!("{} has no effect: {why}", row.name()));
            }
            FlagMapping::Refused(why) => {
                let name = row.name();
                return Err(Failure::usage(format!("{name} is refused: {why}.")));
            }
        }
        Ok(())
    }

    fn push(&mut self, flag: &str, value: &str) {
        self.argv.push(format!("--{flag}").into());
        if !value.is_empty() {
            self.argv.push(value.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use penstock_http::RouterConfig;

    use super::*;
    use crate::settings;

    fn translated(
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Translation, SettingsError> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let variables = variables.iter().map(|(k, v)| (k.into(), v.into()));
        translate(&words, &variables.collect())
    }

    fn argv(words: &[&str], variables: &[(&str, &str)]) -> String {
        let argv = translated(words, variables).unwrap().argv;
        assert!(settings::read(&argv, &Variables::new()).is_ok(), "{argv:?}");
        let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    fn refusal(words: &[&str], variables: &[(&str, &str)]) -> String {
        match translated(words, variables).unwrap_err() {
            SettingsError::Failure(failure) => failure.message,
            SettingsError::Parser(error) => error.to_string(),
        }
    }

    #[test]
    fn a_usual_command_line_is_translated() {
        let words = "--model-id m/x --revision r --num-shard 2 --sharded true --port 80 --dtype \
                     bfloat16 --max-total-tokens 4096 --max-batch-prefill-tokens 2048 --json-output \
                     --cuda-memory-fraction 0.5 -g 9 --hostname ::1";
        let words: Vec<_> = words.split_whitespace().collect();
        assert_eq!(
            argv(&words, &[]),
            "penstock serve --model m/x --revision r --tp 2 --dtype bfloat16 --max-len 4096 \
             --max-step-tokens 2048 --host ::1 --port 80 --memory-fraction 0.45 --log-format json \
             --grace 9"
        );
        assert_eq!(
            argv(
                &["--api-key", "k", "--cors-allow-origin", "http://a,http://b"],
                &[]
            ),
            "penstock serve --cors-allow-origin http://a,http://b --api-key k --host 0.0.0.0"
        );
    }

    #[test]
    fn variables_count_unless_the_flag_is_typed() {
        let variables = [
            ("MODEL_ID", "a/b"),
            ("PORT", "1"),
            ("HOSTNAME", "4f1c"),
            ("JSON_OUTPUT", "false"),
            ("PREFIX_CACHING", "0"),
            ("QUANTIZE", ""),
        ];
        assert_eq!(
            argv(&["--port", "2"], &variables),
            "penstock serve --model a/b --host 0.0.0.0 --port 2 --no-prefix-cache"
        );
        assert_eq!(argv(&[], &[]), "penstock serve --host 0.0.0.0");
        let on = argv(&[], &[("PREFIX_CACHING", "true"), ("JSON_OUTPUT", "1")]);
        assert_eq!(on, "penstock serve --log-format json --host 0.0.0.0");
    }

    #[test]
    fn limits_without_a_flag_reach_the_router() {
        let words = "--validation-workers 3 --max-top-n-tokens 7 --disable-grammar-support --max-best-of 5 --max-stop-sequences 9 --max-input-length 7 \
                     --max-client-batch-size 2 --payload-limit 1000";
        let words: Vec<_> = words.split_whitespace().collect();
        let config = translated(&words, &[])
            .unwrap()
            .limits
            .apply(RouterConfig::new("m"));
        assert_eq!(config.text.tokenizer_threads.get(), 3);
        let limits = &config.text.limits;
        assert_eq!(
            (limits.max_top_tokens, limits.structured_output),
            (7, false)
        );
        assert_eq!(limits.max_best_of, 5);
        assert_eq!(limits.max_stop_sequences, 9);
        assert_eq!(limits.max_input_tokens, Some(7));
        assert_eq!(config.max_client_batch_size, 2);
        assert_eq!(config.max_body_bytes, 1000);
        let usual = Limits::default().apply(RouterConfig::new("m"));
        let limits = &usual.text.limits;
        assert_eq!(
            (limits.max_top_tokens, limits.structured_output),
            (20, true)
        );
        assert_eq!(limits.max_stop_sequences, 16);
    }

    #[test]
    fn weight_formats_have_the_same_names() {
        let formats = "awq bitsandbytes bitsandbytes-fp4 bitsandbytes-nf4 eetq fp8 gptq marlin";
        for format in formats.split(' ') {
            let words = argv(&["--quantize", format], &[]);
            assert!(words.contains(&format!("--quantize {format}")), "{words}");
        }
        let words = argv(&["--quantize", "compressed-tensors"], &[]);
        assert!(!words.contains("quantize"), "{words}");
    }

    #[test]
    fn every_refusal_names_the_setting() {
        let mut refused = 0;
        for row in ROWS {
            if !matches!(row.mapping, FlagMapping::Refused(_)) {
                continue;
            }
            refused += 1;
            if let Some(variable) = row.variable() {
                let message = refusal(&[], &[(&variable, "1")]);
                assert!(message.starts_with(&row.name()), "{message}");
            }
            let flag = format!("--{}", row.flag);
            let message = match row.form {
                Form::Variable => continue,
                Form::Value | Form::Short(_) => refusal(&[&flag, "1"], &[]),
                Form::Switch | Form::FlagOnly(_) => refusal(&[&flag], &[]),
            };
            assert!(message.starts_with(&flag), "{message}");
        }
        assert!(refused >= 10);
        for (words, expected) in [
            (&["--speculate", "2"][..], "--speculate 2: only 0"),
            (
                &["--cuda-graphs", "0"],
                "--cuda-graphs 0: not possible; graphs are",
            ),
            (&["--validation-workers", "0"], "--validation-workers 0"),
            (
                &["--max-input-tokens", "5", "--max-input-length", "5"],
                "not both",
            ),
            (
                &["--quantize", "exl2"],
                "--quantize exl2: EXL2 is not supported",
            ),
            (&["--colour", "red"], "unexpected argument '--colour'"),
        ] {
            let message = refusal(words, &[]);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn settings_without_effect_are_noted() {
        let notes = translated(&["--usage-stats", "off"], &[("ATTENTION", "paged")])
            .unwrap()
            .notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("--usage-stats has no effect"));
        assert!(notes[1].starts_with("ATTENTION has no effect"));
    }

    #[test]
    fn the_documentation_has_this_table() {
        let mut table = String::from("| flag | variable | effect |\n|---|---|---|\n");
        for row in ROWS {
            let flag = match row.form {
                Form::Variable => "-".to_owned(),
                Form::Short(letter) | Form::FlagOnly(letter) => {
                    format!("`--{}`, `-{letter}`", row.flag)
                }
                Form::Value | Form::Switch => format!("`--{}`", row.flag),
            };
            let variable = row
                .variable()
                .map_or("-".into(), |name| format!("`{name}`"));
            let _ = writeln!(table, "| {flag} | {variable} | {} |", row.description());
        }
        let docs = include_str!("../../../docs/tgi.md");
        assert!(docs.contains(&table), "docs/tgi.md must contain:\n{table}");
    }
}
