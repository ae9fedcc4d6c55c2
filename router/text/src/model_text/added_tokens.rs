//! Added tokens that tokenizer_config.json lists and tokenizer.json lacks, or has with other flags.

use std::collections::BTreeMap;

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

/// Adds the tokens of `added_tokens_decoder` in order of their ids, with their flags, as transformers does:
/// folders of fine-tuned models may have the tokenizer.json of the base model. A token that would get another
/// id than its own is left out.
pub fn add_listed(tokenizer: &mut Tokenizer, config: &Value) {
    let members = config["added_tokens_decoder"].as_object();
    let listed: BTreeMap<u32, AddedToken> = members
        .into_iter()
        .flatten()
        .filter_map(|(id, fields)| Some((id.parse().ok()?, read(fields)?)))
        .collect();
    for (id, token) in listed {
        let known = tokenizer.get_added_tokens_decoder().remove(&id);
        let placed = match tokenizer.token_to_id(&token.content) {
            Some(place) => place == id,
            None => tokenizer.get_vocab_size(true) == id as usize,
        };
        if !placed || known.is_some_and(|known| flags(&known) == flags(&token)) {
            continue;
        }
        if token.special {
            tokenizer.add_special_tokens(&[token]);
        } else {
            tokenizer.add_tokens(&[token]);
        }
    }
}

fn read(fields: &Value) -> Option<AddedToken> {
    let flag = |name: &str| fields[name].as_bool();
    let special = flag("special").unwrap_or(false);
    let token = AddedToken::from(fields["content"].as_str()?, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false));
    Some(match flag("normalized") {
        Some(normalized) => token.normalized(normalized),
        None => token,
    })
}

/// Returns what is compared besides the id.
fn flags(token: &AddedToken) -> (&str, [bool; 5]) {
    let AddedToken {
        content,
        single_word,
        lstrip,
        rstrip,
        normalized,
        special,
    } = token;
    (
        content,
        [*single_word, *lstrip, *rstrip, *normalized, *special],
    )
}
