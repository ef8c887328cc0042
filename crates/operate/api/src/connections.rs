//! Limits of connections, and the choice of the connection to close at a limit.
//!
//! A connection over TCP is **unauthenticated** until one of its requests has a valid token. Unauthenticated
//! connections have their own limit, so that they never displace others. At this limit the oldest of them is closed:
//! a client with a token sends it within milliseconds. At the limit of **authenticated** connections the longest idle
//! one is closed. If none is idle, the new one waits.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::Limits;

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: Limits,
    table: Mutex<Table>,
    /// An authenticated connection has closed or become idle.
    room: Notify,
    streams: Arc<Semaphore>,
    /// Whether further ones must wait for another server.
    is_closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Table {
    /// Logical time: the number of events so far.
    ticks: u64,
    /// By the tick at which they were accepted.
    rows: BTreeMap<u64, Row>,
    /// Acceptors that run: what one of them has accepted may have no row yet.
    acceptors: u32,
}

#[derive(Debug)]
struct Row {
    /// Its network; [`None`] for a unix socket.
    network: Option<IpAddr>,
    is_authenticated: bool,
    /// Whether a request has come.
    has_asked: bool,
    /// Requests without a complete answer.
    under_way: u32,
    /// The tick since which it is idle.
    idle_since: u64,
    /// Whether it has become a stream, whose answer has no end.
    is_stream: bool,
    leave: Arc<Notify>,
}

impl Row {
    /// Whether it has asked, and has its answers.
    fn is_at_rest(&self) -> bool {
        self.has_asked && (self.under_way == 0 || self.is_stream)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn evict(&mut self, id: u64) {
        if let Some(row) = self.rows.remove(&id) {
            row.leave.notify_one();
        }
    }

    /// Closes an idle authenticated connection if the limit is reached. Whether one more is possible now.
    fn has_room(&mut self, limit: usize) -> bool {
        let authenticated = || self.rows.iter().filter(|(_, row)| row.is_authenticated);
        if authenticated().count() < limit {
            return true;
        }
        let idle = authenticated().filter(|(_, row)| row.under_way == 0);
        let Some(id) = idle.min_by_key(|(_, row)| row.idle_since).map(|(id, _)| *id) else {
            return false;
        };
        self.evict(id);
        true
    }
}

impl Connections {
    pub(crate) fn new(limits: &Limits) -> Arc<Connections> {
        Arc::new(Connections {
            limits: limits.clone(),
            table: Mutex::default(),
            room: Notify::new(),
            streams: Arc::new(Semaphore::new(limits.streams)),
            is_closed: watch::Sender::new(false),
        })
    }

    /// Begins an acceptor, which ends when the guard is dropped.
    pub(crate) fn acceptor(self: &Arc<Connections>) -> AcceptorGuard {
        self.table().acceptors += 1;
        AcceptorGuard(Arc::clone(self))
    }

    /// Ends [`Connections::until_closed`].
    pub(crate) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    /// The outcome of `accept`; [`None`] once they are closed.
    pub(crate) async fn until_closed<T>(&self, accept: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.is_closed.subscribe();
        tokio::select! {
            biased;
            _ = closed.wait_for(|is_closed| *is_closed) => None,
            accepted = accept => Some(accepted),
        }
    }

    /// Whether nothing accepts any more, each connection has asked, and each has its answers. A stream has no last one.
    pub(crate) fn is_at_rest(&self) -> bool {
        let table = self.table();
        table.acceptors == 0 && table.rows.values().all(Row::is_at_rest)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(self: &Arc<Connections>, table: &mut Table, network: Option<IpAddr>) -> Arc<ConnectionPermit> {
        let id = table.tick();
        let leave = Arc::new(Notify::new());
        let row = Row {
            network,
            is_authenticated: network.is_none(),
            has_asked: false,
            under_way: 0,
            idle_since: id,
            is_stream: false,
            leave: Arc::clone(&leave),
        };
        table.rows.insert(id, row);
        Arc::new(ConnectionPermit {
            connections: Arc::clone(self),
            id,
            leave,
        })
    }

    /// Retries `attempt` each time that a connection closes or becomes idle.
    async fn until<T>(&self, mut attempt: impl FnMut(&mut Table) -> Option<T>) -> T {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            if let Some(done) = attempt(&mut self.table()) {
                return done;
            }
            room.await;
        }
    }

    /// Admits a connection over the unix socket; waits at the limit.
    pub(crate) async fn local(self: &Arc<Connections>) -> Arc<ConnectionPermit> {
        let limit = self.limits.connections;
        self.until(|table| table.has_room(limit).then(|| self.permit(table, None)))
            .await
    }

    /// Admits an unauthenticated connection.
    pub(crate) fn unauthenticated(self: &Arc<Connections>, address: IpAddr) -> Arc<ConnectionPermit> {
        let network = network(address);
        let mut table = self.table();
        let first_of = |table: &Table, limit: usize, is_meant: &dyn Fn(&Row) -> bool| {
            let mut meant = table
                .rows
                .iter()
                .filter(|(_, row)| !row.is_authenticated && is_meant(row));
            let first = meant.next().map(|(id, _)| *id)?;
            (1 + meant.count() >= limit).then_some(first)
        };
        let of_network = |row: &Row| row.network == Some(network);
        // An address with many connections loses its own first.
        let leaves = first_of(&table, self.limits.unauthenticated_per_address, &of_network)
            .or_else(|| first_of(&table, self.limits.unauthenticated, &|_| true));
        if let Some(id) = leaves {
            table.evict(id);
        }
        self.permit(&mut table, Some(network))
    }
}

/// The unit of the limit per address: an IPv4 address, or an IPv6 /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// An admitted connection. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    id: u64,
    leave: Arc<Notify>,
}

impl ConnectionPermit {
    /// Resolves when the connection must close.
    pub(crate) async fn evicted(&self) {
        self.leave.notified().await;
    }

    /// Makes it an authenticated connection; waits at the limit.
    pub(crate) async fn admit(&self) {
        let limit = self.connections.limits.connections;
        let attempt = |table: &mut Table| {
            let must_wait_for_room = table.rows.get(&self.id).is_some_and(|row| !row.is_authenticated);
            if must_wait_for_room {
                if !table.has_room(limit) {
                    return None;
                }
                if let Some(row) = table.rows.get_mut(&self.id) {
                    row.is_authenticated = true;
                }
            }
            Some(())
        };
        self.connections.until(attempt).await;
    }

    /// Whether it is authenticated, or needs no token.
    pub(crate) fn is_authenticated(&self) -> bool {
        let table = self.connections.table();
        table.rows.get(&self.id).is_some_and(|row| row.is_authenticated)
    }

    /// Begins a request, which ends when the guard is dropped.
    pub(crate) fn request(self: &Arc<ConnectionPermit>) -> RequestGuard {
        if let Some(row) = self.connections.table().rows.get_mut(&self.id) {
            row.has_asked = true;
            row.under_way += 1;
        }
        RequestGuard(Arc::clone(self))
    }

    /// A permit for a stream, unless the limit is reached.
    pub(crate) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.connections.streams).try_acquire_owned().ok()?;
        if let Some(row) = self.connections.table().rows.get_mut(&self.id) {
            row.is_stream = true;
        }
        Some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connections.table().rows.remove(&self.id);
        self.connections.room.notify_waiters();
    }
}

/// An acceptor that may have accepted a connection without a row.
pub(crate) struct AcceptorGuard(Arc<Connections>);

impl Drop for AcceptorGuard {
    fn drop(&mut self) {
        self.0.table().acceptors -= 1;
    }
}

/// A request without a complete answer.
pub(crate) struct RequestGuard(Arc<ConnectionPermit>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut table = self.0.connections.table();
        let now = table.tick();
        if let Some(row) = table.rows.get_mut(&self.0.id) {
            row.under_way = row.under_way.saturating_sub(1);
            row.idle_since = now;
        }
        drop(table);
        self.0.connections.room.notify_waiters();
    }
}

/// Keeps a value until the body of the answer is sent.
pub(crate) fn keep<T: Send + Unpin + 'static>(response: Response, kept: T) -> Response {
    response.map(|body| Body::new(GuardedBody { body, _kept: kept }))
}

struct GuardedBody<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> HttpBody for GuardedBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        Connections::new(&Limits {
            connections: 2,
            unauthenticated: 3,
            unauthenticated_per_address: 2,
            streams: 1,
            ..Limits::default()
        })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Whether it must close.
    fn leaves(permit: &ConnectionPermit) -> bool {
        let mut told = std::pin::pin!(permit.evicted());
        told.as_mut()
            .poll(&mut Context::from_waker(std::task::Waker::noop()))
            .is_ready()
    }

    fn is_ready(of: impl Future<Output = ()>) -> bool {
        let of = std::pin::pin!(of);
        of.poll(&mut Context::from_waker(std::task::Waker::noop()))
            .is_ready()
    }

    #[test]
    fn unauthenticated_connections_displace_each_other_first_within_one_address() {
        let connections = connections();
        let a = connections.unauthenticated(address(1));
        let b = connections.unauthenticated(address(2));
        let c = connections.unauthenticated(address(2));
        assert!(![&a, &b, &c].into_iter().any(|permit| leaves(permit)));
        // The oldest of the same address closes, although another one is older.
        let d = connections.unauthenticated(address(2));
        assert!(leaves(&b) && !leaves(&a));
        let _e = connections.unauthenticated(address(3));
        assert!(leaves(&a) && !leaves(&c) && !leaves(&d));
        // A closed connection frees a place.
        drop(c);
        let _f = connections.unauthenticated(address(4));
        assert!(!leaves(&d));
    }

    #[test]
    fn authenticated_connections_close_when_longest_idle_and_never_for_unauthenticated_ones() {
        let connections = connections();
        let authenticated = |last| {
            let permit = connections.unauthenticated(address(last));
            assert!(!permit.is_authenticated() && is_ready(permit.admit()) && permit.is_authenticated());
            permit
        };
        let (a, b) = (authenticated(1), authenticated(2));
        (10..20).for_each(|last| drop(connections.unauthenticated(address(last))));
        drop(a.request());
        let asking = a.request();
        let c = authenticated(3);
        assert!(leaves(&b) && !leaves(&a));
        let other = c.request();
        let late = connections.unauthenticated(address(4));
        let mut admitted = Box::pin(late.admit());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(admitted.as_mut().poll(&mut context).is_pending(), "all are busy");
        drop(asking);
        assert!(admitted.as_mut().poll(&mut context).is_ready() && late.is_authenticated());
        assert!(leaves(&a) && !leaves(&c));
        drop(other);
    }

    #[test]
    fn connections_rest_once_each_has_its_answer() {
        let connections = connections();
        assert!(connections.is_at_rest());
        let (a, b) = (
            connections.unauthenticated(address(1)),
            connections.unauthenticated(address(2)),
        );
        let asking = a.request();
        drop(b.request());
        assert!(!connections.is_at_rest(), "one has no answer yet");
        drop(asking);
        assert!(connections.is_at_rest());
        let c = connections.unauthenticated(address(3));
        assert!(!connections.is_at_rest(), "one has not asked yet");
        drop(c);
        assert!(connections.is_at_rest());
        let accepts = |of: &Connections| {
            let accepted = std::pin::pin!(of.until_closed(std::future::ready(1)));
            accepted.poll(&mut Context::from_waker(std::task::Waker::noop()))
        };
        assert_eq!(accepts(&connections), Poll::Ready(Some(1)));
        let acceptor = connections.acceptor();
        connections.close();
        assert_eq!(accepts(&connections), Poll::Ready(None));
        assert!(!connections.is_at_rest(), "it may have accepted one before");
        drop(acceptor);
        assert!(connections.is_at_rest());
    }

    #[test]
    fn a_stream_rests_although_its_answer_has_no_end() {
        let connections = connections();
        let permit = connections.unauthenticated(address(1));
        let _request = permit.request();
        assert!(!connections.is_at_rest());
        let _stream = permit.stream().unwrap();
        assert!(connections.is_at_rest());
    }

    #[test]
    fn streams_have_room_of_their_own() {
        let connections = connections();
        let permit = connections.unauthenticated(address(1));
        let stream = permit.stream();
        assert!(stream.is_some() && permit.stream().is_none());
        drop(stream);
        assert!(permit.stream().is_some());
    }

    #[test]
    fn a_site_of_ipv6_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), address(1));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
