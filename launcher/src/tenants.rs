//! The file of --tenants.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use penstock_http::{KeyHash, KeyedTenant};
use penstock_request::tenant::Tenant;
use serde::Deserialize;

/// Weights above this lose precision in the scheduler's counters.
const MOST_WEIGHT: u32 = 1_000;

/// A table of the file; its name is the tenant's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Its API keys, themselves or as sha256:HASH.
    keys: Vec<String>,
    /// Share of the workers relative to other tenants.
    weight: Option<NonZeroU32>,
    /// Maximum requests at a time.
    max_concurrent: Option<NonZeroU32>,
    /// Maximum prompt and generated tokens per minute.
    tokens_per_minute: Option<NonZeroU32>,
    /// The least and the greatest priority of its requests.
    priority: Option<[i32; 2]>,
}

/// Reads the tenants of a file.
///
/// # Errors
/// If the file cannot be read, is malformed, or gives a key to two tenants. The message contains no
/// key.
pub fn read(path: &Path) -> Result<Vec<KeyedTenant>, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<Vec<KeyedTenant>, String> {
    // The whole error quotes the line, and a message about a value quotes the value: a key perhaps.
    let tables: BTreeMap<String, Table> = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].lines().count());
        let line = line.map_or_else(String::new, |line| format!("line {}: ", line.max(1)));
        match error.message().split_once(", expected ") {
            Some((found, wanted)) if found.starts_with("invalid") => {
                format!("{line}expected {wanted}")
            }
            _ => format!("{line}{}", error.message()),
        }
    })?;
    if tables.is_empty() {
        return Err("there are no tenants; each is a table `[NAME]` with `keys`".into());
    }
    let mut tenants: Vec<KeyedTenant> = Vec::new();
    for (name, table) in tables {
        let tenant = table.tenant(&name);
        let tenant = tenant.map_err(|why| format!("tenant `{name}`: {why}"))?;
        for other in &tenants {
            let mut keys = other.keys.iter();
            if keys.any(|key| tenant.keys.iter().any(|own| own.equals(key))) {
                let other = &other.tenant.name;
                return Err(format!(
                    "tenants `{other}` and `{name}` have a key in common"
                ));
            }
        }
        tenants.push(tenant);
    }
    Ok(tenants)
}

impl Table {
    fn tenant(self, name: &str) -> Result<KeyedTenant, String> {
        if self.keys.is_empty() {
            return Err("`keys` must have at least one key".into());
        }
        let keys = self.keys.iter().map(|key| KeyHash::parse(key));
        let keys: Vec<KeyHash> = keys.collect::<Result<_, _>>()?;
        let weight = self.weight.map_or(1, NonZeroU32::get);
        if weight > MOST_WEIGHT {
            return Err(format!("`weight` must be at most {MOST_WEIGHT}"));
        }
        let [least, most] = self.priority.unwrap_or([i32::MIN, i32::MAX]);
        if least > most {
            return Err("`priority` must be [LEAST, GREATEST]".into());
        }
        let mut tenant = Tenant::new(name);
        tenant.weight = weight;
        tenant.priorities = least..=most;
        tenant.max_concurrent = self.max_concurrent.map(NonZeroU32::get);
        tenant.tokens_per_minute = self.tokens_per_minute.map(NonZeroU32::get);
        Ok(KeyedTenant {
            keys,
            tenant: Arc::new(tenant),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_defaults() {
        let text = "[alice]\nkeys = ['a1', 'a2']\nweight = 3\nmax_concurrent = 8\n\
                    tokens_per_minute = 60000\npriority = [-1, 5]\n[bob]\nkeys = ['b']\n";
        let tenants = parse(text).unwrap();
        let [alice, bob] = &tenants[..] else {
            panic!("{tenants:?}")
        };
        assert_eq!((alice.keys.len(), alice.tenant.weight), (2, 3));
        assert_eq!(alice.tenant.max_concurrent, Some(8));
        assert_eq!(alice.tenant.tokens_per_minute, Some(60_000));
        assert_eq!(alice.tenant.priorities, -1..=5);
        assert_eq!((bob.tenant.name.as_str(), bob.tenant.weight), ("bob", 1));
        assert_eq!(bob.tenant.max_concurrent, None);
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_place_and_without_keys() {
        for (text, said) in [
            ("", "no tenants"),
            ("[a]\nkeys = []", "tenant `a`: `keys`"),
            ("[a]\nkeys = ['secret']\nweight = 0", "line 3"),
            ("[a]\nkeys = ['secret']\nweight = 1001", "1000"),
            ("[a]\nkeys = ['secret']\nrate = 5", "rate"),
            ("[a]\nkeys = 'secret'", "line 2"),
            ("[a]\nkeys = ['my secret']", "visible ASCII"),
            ("[a]\nkeys = ['secret']\npriority = [2, 1]", "LEAST"),
            (
                "[a]\nkeys = ['secret']\n[b]\nkeys = ['x', 'secret']",
                "in common",
            ),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
