//! The server: sockets, connections and their limits.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tower::ServiceExt as _;

use crate::ApiError;
use crate::accepting::Accepting;
use crate::access::{Guard, Peer, Tokens, guard};
use crate::connections::{ConnectionPermit, Connections, keep};
use crate::control_request::{Caller, RequestSender};
use crate::event_log::EventLog;
use crate::figures::{Counted, Figures};
use crate::routes::{ANSWER_TIME, Shared, routes};
use crate::stream::Snapshots;

/// The largest process id of Linux.
const LAST_PID: u32 = 1 << 22;

/// Limits of the API, per listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections; over TCP, of authenticated ones. For another one, the longest idle connection
    /// is closed; if none is idle, the new one waits.
    pub connections: usize,
    /// Maximum number of streams and followers of events. Further ones are refused.
    pub streams: usize,
    /// Maximum number of unauthenticated connections over TCP. For another one, the oldest is closed.
    pub unauthenticated: usize,
    /// Maximum number of those from one IPv4 address or one IPv6 /64.
    pub unauthenticated_per_address: usize,
    /// Requests per second.
    pub requests_per_s: u32,
    /// Requests per second without a valid token.
    pub failed_tokens_per_s: u32,
    /// Time limit of the head of a request, of a TLS handshake, and of the pause between two requests of a
    /// connection.
    pub head_time: Duration,
    /// Time limit of a whole request until its answer.
    pub request_time: Duration,
    /// Time limit for a client that reads nothing of an answer.
    pub write_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 128,
            streams: 64,
            unauthenticated: 128,
            unauthenticated_per_address: 32,
            requests_per_s: 1000,
            failed_tokens_per_s: 10,
            head_time: Duration::from_secs(10),
            request_time: ANSWER_TIME + Duration::from_secs(5),
            write_time: Duration::from_secs(30),
        }
    }
}

/// The network listener: TLS, with a token per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The address and port to listen on.
    pub address: SocketAddr,
    /// The certificate and its chain, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
    /// The file of tokens. Each line has a role, `admin` or `read`, a name and the token.
    pub tokens: PathBuf,
}

/// Where and how a server listens.
#[derive(Debug)]
pub struct ServerSettings {
    /// The path of the unix socket.
    pub socket: PathBuf,
    /// The network listener, if there is one.
    pub tcp: Option<Tcp>,
    /// The limits of each listener.
    pub limits: Limits,
    /// Those that the server before [handed over](Server::hand_over): clients that connected meanwhile wait there.
    /// What is missing is made.
    pub listeners: Listeners,
}

impl ServerSettings {
    /// On this socket alone, with the usual limits.
    pub fn on(socket: impl Into<PathBuf>) -> ServerSettings {
        ServerSettings {
            socket: socket.into(),
            tcp: None,
            limits: Limits::default(),
            listeners: Listeners::default(),
        }
    }
}

/// Listeners on their way from one server to the next.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Of the unix socket.
    pub unix: Option<OwnedFd>,
    /// Of the network.
    pub tcp: Option<OwnedFd>,
}

/// The running server. Dropping it ends it and removes the unix socket.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    tcp: Option<SocketAddr>,
    /// Duplicates, until they are handed over.
    listeners: Listeners,
    door: Door,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on the socket (mode 0660) and, if configured, over TCP. It answers on its own thread. It creates a
    /// missing directory and replaces a socket without a listener.
    ///
    /// # Errors
    /// [`ApiError::InUse`] if another process listens; [`ApiError::Permission`] and [`ApiError::System`];
    /// [`ApiError::Tokens`] and [`ApiError::Certificate`].
    pub fn start(
        settings: ServerSettings,
        asker: RequestSender,
        events: EventLog,
    ) -> Result<Server, ApiError> {
        let ServerSettings {
            socket,
            tcp,
            limits,
            listeners,
        } = settings;
        let secured = tcp.map(|tcp| Secured::open(&tcp, listeners.tcp)).transpose()?;
        let listener = match listeners.unix {
            Some(listener) => listener.into(),
            None => listen(&socket)?,
        };
        let address = secured.as_ref().map(|secured| secured.address);
        let duplicate = |of: BorrowedFd<'_>| of.try_clone_to_owned().map_err(system("listen on", &socket));
        let listeners = Listeners {
            unix: Some(duplicate(listener.as_fd())?),
            tcp: secured
                .as_ref()
                .map(|secured| duplicate(secured.listener.as_fd()))
                .transpose()?,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("start the runtime for", &socket))?;
        let (end, ended) = oneshot::channel();
        let door = Door {
            local: Connections::new(&limits),
            remote: Connections::new(&limits),
        };
        let doors = door.clone();
        let thread = std::thread::Builder::new()
            .name("inco-api".to_owned())
            .spawn(move || runtime.block_on(serve((listener, secured), doors, limits, asker, events, ended)))
            .map_err(system("start the thread for", &socket))?;
        Ok(Server {
            socket,
            tcp: address,
            listeners,
            door,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Ends the server without its unix socket, and gives the listeners for the next one.
    pub fn hand_over(mut self) -> Listeners {
        std::mem::take(&mut self.listeners)
    }

    /// Where its clients come in.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// The path of its unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its TCP address, if it listens over TCP, with the actual port.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.listeners.unix.is_some() {
            let _ = std::fs::remove_file(&self.socket);
        }
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where the clients of a server come in.
#[derive(Clone, Debug)]
pub struct Door {
    local: Arc<Connections>,
    remote: Arc<Connections>,
}

impl Door {
    /// Accepts no connection any more: new ones wait for the server that gets the listeners.
    pub fn close(&self) {
        self.local.close();
        self.remote.close();
    }

    /// Whether it is closed, and each client that came in was answered. A stream of events does not count: it has no
    /// last answer.
    pub fn is_at_rest(&self) -> bool {
        self.local.is_at_rest() && self.remote.is_at_rest()
    }
}

fn system(what: &'static str, path: &Path) -> impl Fn(io::Error) -> ApiError + use<> {
    let path = path.to_owned();
    move |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => ApiError::Permission { socket: path.clone() },
        _ => ApiError::System {
            what,
            path: path.clone(),
            source,
        },
    }
}

/// The temporary path at which the process with this id binds a socket before it renames it.
fn before_its_mode(socket: &Path, pid: u32) -> PathBuf {
    socket.with_file_name(format!(".{pid}"))
}

/// The longest path that a server on this socket binds. The kernel's limit is 107 bytes.
pub fn longest_path(socket: &Path) -> PathBuf {
    let fresh = before_its_mode(socket, LAST_PID);
    if fresh.as_os_str().len() > socket.as_os_str().len() {
        fresh
    } else {
        socket.to_owned()
    }
}

fn listen(socket: &Path) -> Result<StdUnixListener, ApiError> {
    if let Some(directory) = socket.parent() {
        std::fs::create_dir_all(directory).map_err(system("make directory", directory))?;
    }
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => {
            return Err(ApiError::InUse {
                socket: socket.to_owned(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Only a socket of an earlier run is removed, no other file.
            let about = std::fs::symlink_metadata(socket).map_err(system("look at", socket))?;
            if !about.file_type().is_socket() {
                return Err(ApiError::NotASocket {
                    path: socket.to_owned(),
                });
            }
            std::fs::remove_file(socket).map_err(system("remove the old socket", socket))?;
        }
        // Other problems are reported by the bind.
        Err(_) => {}
    }
    // Bound under another name, so that no client can connect before the mode is set.
    let fresh = before_its_mode(socket, std::process::id());
    let _ = std::fs::remove_file(&fresh);
    let listener = StdUnixListener::bind(&fresh).map_err(system("listen on", socket))?;
    let mode = std::fs::Permissions::from_mode(0o660);
    std::fs::set_permissions(&fresh, mode).map_err(system("set the mode of", &fresh))?;
    std::fs::rename(&fresh, socket).map_err(system("listen on", socket))?;
    listener
        .set_nonblocking(true)
        .map_err(system("listen on", socket))?;
    Ok(listener)
}

/// The TCP listener with its tokens and its TLS settings.
struct Secured {
    listener: StdTcpListener,
    address: SocketAddr,
    tls: TlsAcceptor,
    tokens: Tokens,
}

impl Tcp {
    /// Reads the file of tokens.
    ///
    /// # Errors
    /// [`ApiError::Tokens`].
    pub fn check_tokens(&self) -> Result<(), ApiError> {
        Tokens::read(&self.tokens).map(drop)
    }

    /// Reads the certificate and its key.
    ///
    /// # Errors
    /// [`ApiError::Certificate`].
    pub fn check_certificate(&self) -> Result<(), ApiError> {
        self.tls().map(drop)
    }

    fn tls(&self) -> Result<ServerConfig, ApiError> {
        let wrong = |file: &Path, reason: String| ApiError::Certificate {
            file: file.to_owned(),
            reason,
        };
        let certificates = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(&self.certificate, error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| wrong(&self.key, error.to_string()))?;
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| wrong(&self.certificate, error.to_string()))
    }
}

impl Secured {
    /// On the listener of the server before, if there is one.
    fn open(of: &Tcp, listener: Option<OwnedFd>) -> Result<Secured, ApiError> {
        let tokens = Tokens::read(&of.tokens)?;
        let config = of.tls()?;
        let place = PathBuf::from(of.address.to_string());
        let listener = match listener {
            Some(listener) => listener.into(),
            None => StdTcpListener::bind(of.address).map_err(system("listen on", &place))?,
        };
        listener
            .set_nonblocking(true)
            .map_err(system("listen on", &place))?;
        let address = listener.local_addr().map_err(system("listen on", &place))?;
        Ok(Secured {
            listener,
            address,
            tls: TlsAcceptor::from(Arc::new(config)),
            tokens,
        })
    }
}

async fn serve(
    (listener, secured): (StdUnixListener, Option<Secured>),
    door: Door,
    limits: Limits,
    asker: RequestSender,
    events: EventLog,
    ended: oneshot::Receiver<()>,
) {
    let figures = Arc::new(Figures::default());
    let snapshots = Arc::new(Snapshots::default());
    tokio::spawn(Arc::clone(&snapshots).refresh(asker.clone()));
    let routes = routes(Shared {
        asker,
        events,
        snapshots,
        figures: Arc::clone(&figures),
    });
    let guarded = |tokens| {
        let state = Arc::new(Guard::new(tokens, &limits, Arc::clone(&figures)));
        routes
            .clone()
            .layer(axum::middleware::from_fn_with_state(state, guard))
    };
    let local = Acceptor {
        routes: guarded(None),
        connections: door.local,
        limits: limits.clone(),
        figures: Arc::clone(&figures),
    };
    if let Ok(listener) = UnixListener::from_std(listener) {
        tokio::spawn(local.take_local(listener));
    }
    if let Some(secured) = secured
        && let Ok(listener) = TcpListener::from_std(secured.listener)
    {
        let remote = Acceptor {
            routes: guarded(Some(secured.tokens)),
            connections: door.remote,
            limits,
            figures,
        };
        tokio::spawn(remote.take_remote(listener, secured.tls));
    }
    let _ = ended.await;
    // Complete answers are still sent. Pending requests are dropped: the control loop has ended before the server.
    sleep(Duration::from_millis(20)).await;
}

/// Accepts the connections of a listener.
struct Acceptor {
    routes: Router,
    connections: Arc<Connections>,
    limits: Limits,
    figures: Arc<Figures>,
}

impl Acceptor {
    async fn take_local(self, listener: UnixListener) {
        let _accepts = self.connections.acceptor();
        let door = Arc::new(self);
        let mut accepting = Accepting::new();
        while let Some(accepted) = door.connections.until_closed(listener.accept()).await {
            let Some((stream, _)) = accepting.take(accepted).await else {
                continue;
            };
            // Arrived requests are read first: their connections are not idle.
            yield_now().await;
            let permit = door.connections.local().await;
            let door = Arc::clone(&door);
            tokio::spawn(async move {
                let _counted = Counted::new(&door.figures.unix_connections);
                let uid = stream.peer_cred().map(|of| of.uid());
                let caller = Caller {
                    is_root: matches!(uid, Ok(0)),
                    name: uid.map_or_else(|_| "unknown uid".to_owned(), |uid| format!("uid {uid}")),
                    may_act: true,
                };
                let stream = TimedStream::new(stream, door.limits.write_time);
                door.answer(stream, Peer::Local(caller), &permit).await;
            });
        }
    }

    async fn take_remote(self, listener: TcpListener, tls: TlsAcceptor) {
        let _accepts = self.connections.acceptor();
        let door = Arc::new(self);
        let mut accepting = Accepting::new();
        while let Some(accepted) = door.connections.until_closed(listener.accept()).await {
            let Some((stream, from)) = accepting.take(accepted).await else {
                continue;
            };
            // Arrived tokens are read first: their connections become authenticated.
            yield_now().await;
            let permit = door.connections.unauthenticated(from.ip());
            let (door, tls) = (Arc::clone(&door), tls.clone());
            tokio::spawn(async move {
                let _counted = Counted::new(&door.figures.tcp_connections);
                let _ = stream.set_nodelay(true);
                let stream = TimedStream::new(stream, door.limits.write_time);
                let handshake = tokio::select! {
                    handshake = timeout(door.limits.head_time, tls.accept(stream)) => handshake,
                    () = permit.evicted() => return door.dropped(),
                };
                match handshake {
                    Ok(Ok(stream)) => door.answer(stream, Peer::Remote, &permit).await,
                    Ok(Err(_)) | Err(_) => door.dropped(),
                }
            });
        }
    }

    fn dropped(&self) {
        self.figures.dropped_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Answers the requests of a connection until it closes or is evicted.
    async fn answer(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        peer: Peer,
        permit: &Arc<ConnectionPermit>,
    ) {
        let service = service_fn(move |request: Request<Incoming>| {
            let under_way = permit.request();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(Arc::clone(permit));
            let answer = self.routes.clone().oneshot(request);
            async { answer.await.map(|response| keep(response, under_way)) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head_time)
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended
                    && (error.is_timeout() || is_timed_out(&error))
                {
                    self.dropped();
                }
            }
            () = permit.evicted() => self.dropped(),
        }
    }
}

fn is_timed_out(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// A stream with a time limit on writes: a peer that reads nothing would block a connection that others wait for.
struct TimedStream<T> {
    stream: T,
    patience: Duration,
    /// Runs while data wait to be written.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<T> TimedStream<T> {
    fn new(stream: T, patience: Duration) -> TimedStream<T> {
        TimedStream {
            stream,
            patience,
            waiting: None,
        }
    }

    fn in_time<R>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, result)
    }
}
