//! Scripted faults.

use std::str::FromStr;

/// Something that goes wrong. Steps count from 0 since the worker began, over all epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The worker dies instead of answering this step.
    Crash(u64),
    /// The worker never answers this step.
    Hang(u64),
    /// The worker answers this step a second late.
    Stall(u64),
    /// The first sequence of this step fails.
    ErrorSlot(u64),
    /// What was prepared for the first sequence of this step is gone.
    DropPrepared(u64),
    /// The first token of this step is past the vocabulary.
    AlienToken(u64),
    /// The first sequence of this step is reported as closing: its grammar allows the end alone.
    Closing(u64),
    /// The worker dies of every step in which a sequence with this token enters or yields it.
    DieOn(u32),
    /// Every such step fails as a whole; the worker lives.
    RaiseOn(u32),
    /// Every Prepare is refused with this text.
    RefusePrepare(String),
    /// No Prepare is ever answered.
    HangPrepare,
    /// Top logprobs are left out of all replies.
    OmitLogprobs,
    /// Load fails with this text.
    LoadError(String),
}

/// Why a text is not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a fault: write crash@STEP, hang@STEP, stall@STEP, error-slot@STEP, \
     drop-prepared@STEP, alien-token@STEP, closing@STEP, die-on@TOKEN, raise-on@TOKEN, hang-prepare, omit-logprobs, refuse-prepare=TEXT or load-error=TEXT"
)]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let unknown = || FaultError(text.to_owned());
        if let Some((kind, message)) = text.split_once('=') {
            return match kind {
                "refuse-prepare" => Ok(Self::RefusePrepare(message.to_owned())),
                "load-error" => Ok(Self::LoadError(message.to_owned())),
                _ => Err(unknown()),
            };
        }
        match text {
            "hang-prepare" => return Ok(Self::HangPrepare),
            "omit-logprobs" => return Ok(Self::OmitLogprobs),
            _ => {}
        }
        let (kind, number) = text.split_once('@').ok_or_else(unknown)?;
        let step = number.parse().map_err(|_| unknown())?;
        let token = || number.parse().map_err(|_| unknown());
        match kind {
            "crash" => Ok(Self::Crash(step)),
            "hang" => Ok(Self::Hang(step)),
            "stall" => Ok(Self::Stall(step)),
            "error-slot" => Ok(Self::ErrorSlot(step)),
            "drop-prepared" => Ok(Self::DropPrepared(step)),
            "alien-token" => Ok(Self::AlienToken(step)),
            "closing" => Ok(Self::Closing(step)),
            "die-on" => Ok(Self::DieOn(token()?)),
            "raise-on" => Ok(Self::RaiseOn(token()?)),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_and_refuses_others() {
        assert_eq!("crash@3".parse(), Ok(Fault::Crash(3)));
        assert_eq!("hang@0".parse(), Ok(Fault::Hang(0)));
        assert_eq!("stall@2".parse(), Ok(Fault::Stall(2)));
        assert_eq!("error-slot@7".parse(), Ok(Fault::ErrorSlot(7)));
        assert_eq!("alien-token@4".parse(), Ok(Fault::AlienToken(4)));
        assert_eq!("closing@5".parse(), Ok(Fault::Closing(5)));
        assert_eq!("die-on@6".parse(), Ok(Fault::DieOn(6)));
        assert_eq!("raise-on@6".parse(), Ok(Fault::RaiseOn(6)));
        assert_eq!("drop-prepared@2".parse(), Ok(Fault::DropPrepared(2)));
        assert_eq!(
            "refuse-prepare=a=b".parse(),
            Ok(Fault::RefusePrepare("a=b".into()))
        );
        assert_eq!("hang-prepare".parse(), Ok(Fault::HangPrepare));
        assert_eq!("omit-logprobs".parse(), Ok(Fault::OmitLogprobs));
        assert_eq!("load-error=no".parse(), Ok(Fault::LoadError("no".into())));
        for text in ["", "crash", "crash@x", "melt@1", "melt=1"] {
            assert_eq!(text.parse::<Fault>(), Err(FaultError(text.into())));
        }
    }
}
