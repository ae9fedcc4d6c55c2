//! Conversion of values of TGI's launcher to values of `penstock serve`.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;

use penstock_request::logprobs::MAX_TOP_LOGPROBS;

use crate::limits::Limits;

pub(super) fn threads(limits: &mut Limits, value: &str) -> Result<(), String> {
    limits.tokenizer_threads = Some(number::<NonZeroUsize>(value)?);
    Ok(())
}

pub(super) fn max_best_of(limits: &mut Limits, value: &str) -> Result<(), String> {
    limits.max_best_of = Some(number::<NonZeroU32>(value)?.get());
    Ok(())
}

pub(super) fn max_top_tokens(limits: &mut Limits, value: &str) -> Result<(), String> {
    match number::<u32>(value)? {
        most @ 0..=MAX_TOP_LOGPROBS => limits.max_top_tokens = Some(most),
        _ => return Err(format!("the maximum is {MAX_TOP_LOGPROBS}")),
    }
    Ok(())
}

pub(super) fn no_grammars(limits: &mut Limits, _: &str) -> Result<(), String> {
    limits.no_grammars = true;
    Ok(())
}

pub(super) fn stop_strings(limits: &mut Limits, value: &str) -> Result<(), String> {
    limits.max_stop_sequences = Some(number(value)?);
    Ok(())
}

pub(super) fn max_input(limits: &mut Limits, value: &str) -> Result<(), String> {
    if limits.max_input_tokens.is_some() {
        return Err("set --max-input-tokens or --max-input-length, not both".into());
    }
    limits.max_input_tokens = Some(number::<NonZeroUsize>(value)?.get());
    Ok(())
}

pub(super) fn batch_prompts(limits: &mut Limits, value: &str) -> Result<(), String> {
    limits.max_client_batch_size = Some(number::<NonZeroUsize>(value)?.get());
    Ok(())
}

pub(super) fn body_bytes(limits: &mut Limits, value: &str) -> Result<(), String> {
    limits.max_body_bytes = Some(number::<NonZeroUsize>(value)?.get());
    Ok(())
}

pub(super) fn host(value: &str) -> Result<Option<String>, String> {
    let address = IpAddr::from_str(value).map(|address| address.to_string());
    Ok(Some(address.unwrap_or_else(|_| "0.0.0.0".into())))
}

pub(super) fn memory_share(value: &str) -> Result<Option<String>, String> {
    let share: f32 = number(value)?;
    Ok(Some((share * 0.9).to_string()))
}

/// Converts TGI's formats: all except two are values of `--quantize`.
pub(super) fn quantize(value: &str) -> Result<Option<String>, String> {
    match value {
        "compressed-tensors" => Ok(None),
        "exl2" => Err("EXL2 is not supported; serve a GPTQ or AWQ checkpoint".into()),
        known => Ok(Some(known.to_owned())),
    }
}

pub(super) fn negated_bool(value: &str) -> Result<Option<String>, String> {
    Ok((!truth(value)?).then(String::new))
}

pub(super) fn only(value: &str, allowed: &[&str]) -> Result<(), String> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(format!("only {} is accepted", allowed.join(" or ")))
}

pub(super) fn not_zero(value: &str) -> Result<(), String> {
    if value.trim() == "0" {
        return Err("not possible".into());
    }
    Ok(())
}

/// Parses a boolean as clap parses variables.
pub(super) fn truth(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "t" | "y" => Ok(true),
        "false" | "0" | "no" | "off" | "f" | "n" | "" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| "must be a number in the allowed range".into())
}
