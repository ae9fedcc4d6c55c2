//! Finding clients that are gone without a word: their host lost power or its network, so neither a
//! FIN nor a reset comes. A connection that waits for a token would otherwise wait forever, and one
//! that sends would take the system's 15 minutes of retransmissions.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;

/// Silence after which the system asks the client's whether the connection still exists.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of further questions.
const INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered questions after which the connection is closed.
const RETRIES: u32 = 3;

/// Lets the system close the connections of `listener` whose clients are gone: after about a minute
/// of silence, or if data is not acknowledged for `unacknowledged`. Accepted sockets inherit this.
pub(crate) fn close_half_open(listener: &TcpListener, unacknowledged: Duration) -> io::Result<()> {
    let socket = SockRef::from(listener);
    let keepalive = TcpKeepalive::new()
        .with_time(IDLE)
        .with_interval(INTERVAL)
        .with_retries(RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(unacknowledged))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn accepted_connections_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        close_half_open(&listener, Duration::from_secs(7)).unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = accepted.unwrap().0;
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), RETRIES);
        let limit = Some(Duration::from_secs(7));
        assert_eq!(socket.tcp_user_timeout().unwrap(), limit);
        drop(client);
    }
}
