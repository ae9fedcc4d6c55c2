//! On whose behalf a request runs: by its key, or by the headers of an inference gateway.

use std::time::Duration;

use axum::http::HeaderMap;
use penstock_request::error::{ApiError, Excerpt};
use penstock_request::tenant::Caller;

/// Headers of llm-d's gateway, and their older names: the flow, and the time to the first token that
/// is wanted, in milliseconds. The time per token that is wanted has no effect: all streams have the
/// latency of `--latency-target`.
const FLOW: [&str; 2] = [
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
];
const FIRST_TOKEN: [&str; 2] = ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];

/// Returns the caller that the headers describe, without a tenant.
pub(super) fn described(headers: &HeaderMap) -> Result<Caller, ApiError> {
    let text = |names: [&'static str; 2]| {
        let mut named = names.into_iter().filter_map(|name| {
            let text = headers.get(name)?.to_str().ok()?.trim();
            Some((name, text))
        });
        named.find(|(_, text)| !text.is_empty())
    };
    let millis = |(name, text): (&'static str, &str)| {
        let millis: Option<f64> = text.parse().ok();
        let valid = millis.filter(|millis| (0.0..=1e12).contains(millis));
        let wrong = || {
            let given = Excerpt::new(text);
            let rule = format!("`{name}` must be a number of milliseconds. Given: `{given}`");
            ApiError::validation(name, rule)
        };
        let millis = valid.ok_or_else(wrong)?;
        Ok::<_, ApiError>(Duration::from_secs_f64(millis / 1e3))
    };
    Ok(Caller {
        tenant: None,
        flow: text(FLOW).map(|(_, id)| id.into()),
        first_token_within: text(FIRST_TOKEN).map(millis).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn either_name_of_a_gateways_header_counts() {
        for (flow, first) in FLOW.into_iter().zip(FIRST_TOKEN) {
            let caller = described(&headers(&[(flow, "team-a"), (first, "250.5")])).unwrap();
            assert_eq!(caller.flow.as_deref(), Some("team-a"));
            assert_eq!(
                caller.first_token_within,
                Some(Duration::from_micros(250_500))
            );
        }
        let nobody = described(&headers(&[(FLOW[0], "")])).unwrap();
        assert!(nobody.flow.is_none() && nobody.first_token_within.is_none());
    }

    #[test]
    fn a_time_that_is_no_number_is_refused() {
        for wrong in ["soon", "-1", "NaN", "inf"] {
            let refused = described(&headers(&[(FIRST_TOKEN[1], wrong)])).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("x-slo-ttft-ms"), "{wrong}");
        }
    }
}
