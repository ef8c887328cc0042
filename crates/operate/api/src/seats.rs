//! Room for connections: who has it, and who must leave where more come than there is room for.
//!
//! A connection over TCP is a **stranger** until one of its requests carries a known token; strangers have room of
//! their own, so that they never take that of the others. Where there is none left, the stranger that came first
//! leaves: whoever has a token shows it within milliseconds, and whoever has none may come again. Of those that are
//! **known**, the one that has been without a request for the longest time leaves; where all have one under way, the
//! next waits.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::Limits;

/// All the connections of a listener.
#[derive(Debug)]
pub(crate) struct Seats {
    limits: Limits,
    table: Mutex<Table>,
    /// A known connection has left, or has no request any more.
    room: Notify,
    streams: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Table {
    /// Counts what happens: an order in time without a clock.
    ticks: u64,
    /// By the tick at which they came.
    rows: BTreeMap<u64, Row>,
}

#[derive(Debug)]
struct Row {
    /// Where it comes from; none over a unix socket.
    network: Option<IpAddr>,
    is_known: bool,
    /// Requests whose answer is not given completely.
    under_way: u32,
    /// The tick since which there are none.
    idle_since: u64,
    leave: Arc<Notify>,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    fn put_out(&mut self, id: u64) {
        if let Some(row) = self.rows.remove(&id) {
            row.leave.notify_one();
        }
    }

    /// Makes room for one more known connection, where that can be.
    fn has_room(&mut self, limit: usize) -> bool {
        let known = || self.rows.iter().filter(|(_, row)| row.is_known);
        if known().count() < limit {
            return true;
        }
        let idle = known().filter(|(_, row)| row.under_way == 0);
        let Some(id) = idle.min_by_key(|(_, row)| row.idle_since).map(|(id, _)| *id) else {
            return false;
        };
        self.put_out(id);
        true
    }
}

impl Seats {
    pub(crate) fn new(limits: &Limits) -> Arc<Seats> {
        Arc::new(Seats {
            limits: limits.clone(),
            table: Mutex::default(),
            room: Notify::new(),
            streams: Arc::new(Semaphore::new(limits.streams)),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(self: &Arc<Seats>, table: &mut Table, network: Option<IpAddr>) -> Arc<Seat> {
        let id = table.tick();
        let leave = Arc::new(Notify::new());
        let row = Row {
            network,
            is_known: network.is_none(),
            under_way: 0,
            idle_since: id,
            leave: Arc::clone(&leave),
        };
        table.rows.insert(id, row);
        Arc::new(Seat {
            seats: Arc::clone(self),
            id,
            leave,
        })
    }

    /// Waits until something may have made room, and tries again.
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

    /// Waits for room for a connection over the unix socket.
    pub(crate) async fn local(self: &Arc<Seats>) -> Arc<Seat> {
        let limit = self.limits.connections;
        self.until(|table| table.has_room(limit).then(|| self.seat(table, None)))
            .await
    }

    /// Room for a connection of somebody who has shown no token.
    pub(crate) fn stranger(self: &Arc<Seats>, address: IpAddr) -> Arc<Seat> {
        let network = network(address);
        let mut table = self.table();
        let first_of = |table: &Table, limit: usize, is_meant: &dyn Fn(&Row) -> bool| {
            let mut meant = table
                .rows
                .iter()
                .filter(|(_, row)| !row.is_known && is_meant(row));
            let first = meant.next().map(|(id, _)| *id)?;
            (1 + meant.count() >= limit).then_some(first)
        };
        let of_network = |row: &Row| row.network == Some(network);
        // Whoever has many leaves some of its own first.
        let leaves = first_of(&table, self.limits.strangers_per_address, &of_network)
            .or_else(|| first_of(&table, self.limits.strangers, &|_| true));
        if let Some(id) = leaves {
            table.put_out(id);
        }
        self.seat(&mut table, Some(network))
    }
}

/// What counts as one address: that of IPv4, and of IPv6 what one site is given.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// A connection's room; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    id: u64,
    leave: Arc<Notify>,
}

impl Seat {
    /// Ends when the connection must leave.
    pub(crate) async fn must_leave(&self) {
        self.leave.notified().await;
    }

    /// It has shown a known token: waits for room among those that have.
    pub(crate) async fn admit(&self) {
        let limit = self.seats.limits.connections;
        let attempt = |table: &mut Table| {
            let is_stranger = table.rows.get(&self.id).is_some_and(|row| !row.is_known);
            if is_stranger {
                if !table.has_room(limit) {
                    return None;
                }
                if let Some(row) = table.rows.get_mut(&self.id) {
                    row.is_known = true;
                }
            }
            Some(())
        };
        self.seats.until(attempt).await;
    }

    /// Whether it is among those that have shown a token, or need none.
    pub(crate) fn is_known(&self) -> bool {
        let table = self.seats.table();
        table.rows.get(&self.id).is_some_and(|row| row.is_known)
    }

    /// A request has come; it is under way until what is given is dropped.
    pub(crate) fn request(self: &Arc<Seat>) -> UnderWay {
        if let Some(row) = self.seats.table().rows.get_mut(&self.id) {
            row.under_way += 1;
        }
        UnderWay(Arc::clone(self))
    }

    /// Room for an answer without an end, if there is any.
    pub(crate) fn stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.seats.streams).try_acquire_owned().ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.table().rows.remove(&self.id);
        self.seats.room.notify_waiters();
    }
}

/// A request that is not answered completely.
pub(crate) struct UnderWay(Arc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut table = self.0.seats.table();
        let now = table.tick();
        if let Some(row) = table.rows.get_mut(&self.0.id) {
            row.under_way = row.under_way.saturating_sub(1);
            row.idle_since = now;
        }
        drop(table);
        self.0.seats.room.notify_waiters();
    }
}

/// Keeps something for as long as the answer's body is not given completely.
pub(crate) fn keep<T: Send + Unpin + 'static>(response: Response, kept: T) -> Response {
    response.map(|body| Body::new(Keeping { body, _kept: kept }))
}

struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> HttpBody for Keeping<T> {
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

    fn seats() -> Arc<Seats> {
        Seats::new(&Limits {
            connections: 2,
            strangers: 3,
            strangers_per_address: 2,
            streams: 1,
            ..Limits::default()
        })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Whether it was told to leave.
    fn leaves(seat: &Seat) -> bool {
        let mut told = std::pin::pin!(seat.must_leave());
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
    fn strangers_leave_for_strangers_and_first_those_of_one_address() {
        let seats = seats();
        let a = seats.stranger(address(1));
        let b = seats.stranger(address(2));
        let c = seats.stranger(address(2));
        assert!(![&a, &b, &c].into_iter().any(|seat| leaves(seat)));
        // Its own oldest, although another one is older.
        let d = seats.stranger(address(2));
        assert!(leaves(&b) && !leaves(&a));
        let _e = seats.stranger(address(3));
        assert!(leaves(&a) && !leaves(&c) && !leaves(&d));
        // One that has left by itself makes room.
        drop(c);
        let _f = seats.stranger(address(4));
        assert!(!leaves(&d));
    }

    #[test]
    fn the_known_leave_when_they_have_been_idle_the_longest_and_never_for_strangers() {
        let seats = seats();
        let known = |last| {
            let seat = seats.stranger(address(last));
            assert!(!seat.is_known() && is_ready(seat.admit()) && seat.is_known());
            seat
        };
        let (a, b) = (known(1), known(2));
        (10..20).for_each(|last| drop(seats.stranger(address(last))));
        drop(a.request());
        let asking = a.request();
        let c = known(3);
        assert!(leaves(&b) && !leaves(&a));
        let other = c.request();
        let late = seats.stranger(address(4));
        let mut admitted = Box::pin(late.admit());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(admitted.as_mut().poll(&mut context).is_pending(), "all are busy");
        drop(asking);
        assert!(admitted.as_mut().poll(&mut context).is_ready() && late.is_known());
        assert!(leaves(&a) && !leaves(&c));
        drop(other);
    }

    #[test]
    fn streams_have_room_of_their_own() {
        let seats = seats();
        let seat = seats.stranger(address(1));
        let stream = seat.stream();
        assert!(stream.is_some() && seat.stream().is_none());
        drop(stream);
        assert!(seat.stream().is_some());
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
