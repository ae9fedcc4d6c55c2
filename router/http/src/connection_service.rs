//! The routes as the service of one connection. It reports to the connection's state when a request
//! begins and ends.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, header};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use tower::ServiceExt;

use super::connection_limit::{ActiveRequest, ConnectionState};
use super::request_body::RequestBody;

/// The routes, for one connection.
pub(super) struct ConnectionService {
    pub(super) router: Router,
    pub(super) state: Arc<ConnectionState>,
}

/// A response's body. The connection counts as busy until it is dropped.
pub(super) struct ResponseBody {
    body: Body,
    active: ActiveRequest,
    /// Whether an SSE comment may still be sent to probe whether the client is still connected.
    comment: bool,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let active = self.state.begin_request(request.body().is_end_stream());
        let (head, body) = request.into_parts();
        let (body, unread) = RequestBody::new(body, &head.headers, &self.state);
        let request = Request::from_parts(head, Body::new(body));
        let response = self.router.clone().oneshot(request);
        Box::pin(async move {
            let mut response = response.await?;
            if let Some(unread) = unread {
                unread.discard(&mut response).await;
            }
            let kind = response.headers().get(header::CONTENT_TYPE);
            let comment = kind.is_some_and(|kind| kind == "text/event-stream");
            Ok(response.map(|body| ResponseBody {
                body,
                active,
                comment,
            }))
        })
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() && self.comment && self.active.state().is_half_closed() {
            self.comment = false;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b":\n\n")))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
