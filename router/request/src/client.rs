//! The client of a connection; used to keep one client's costly requests from delaying others.

use std::{future::Future, net::IpAddr};

/// A client, identified by its IPv4 address or by its IPv6 /64 prefix, which a provider assigns as
/// a whole. Clients behind one proxy count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(IpAddr);

tokio::task_local! {
    static CLIENT: Client;
}

impl Client {
    /// Returns the client of a connection with this remote address.
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

    /// Runs `work` on behalf of this client.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CLIENT.scope(self, work).await
    }

    /// Returns the client of the current task, if known.
    #[must_use]
    pub fn current() -> Option<Self> {
        CLIENT.try_with(|client| *client).ok()
    }

    /// Returns the name that the workers get.
    pub fn name(self) -> String {
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
