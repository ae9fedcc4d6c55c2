//! Whose requests a connection carries: what keeps one client's costly requests from being another's.

use std::{future::Future, net::IpAddr};

/// A client, told from others by its address: of IPv6 by the first half, which a provider gives as a
/// whole. Those behind one proxy are one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(IpAddr);

tokio::task_local! {
    static CLIENT: Client;
}

impl Client {
    /// Of a connection's other end.
    #[must_use]
    pub fn at(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let prefix = address.to_bits() >> 64 << 64;
                IpAddr::V6(prefix.into())
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// Of whom `work` is done.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CLIENT.scope(self, work).await
    }

    /// Of whom the current task's work is done, if that is known.
    #[must_use]
    pub fn current() -> Option<Self> {
        CLIENT.try_with(|client| *client).ok()
    }

    /// What the workers tell it by.
    pub(crate) fn name(self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_or_a_network() {
        let at = |text: &str| Client::at(text.parse().unwrap());
        assert_eq!(at("10.0.0.1"), at("::ffff:10.0.0.1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("2001:db8:1:2::3"), at("2001:db8:1:2:ffff::4"));
        assert_ne!(at("2001:db8:1:2::3"), at("2001:db8:1:3::3"));
        assert_eq!(at("2001:db8:1:2::3").name(), "2001:db8:1:2::");
    }
}
