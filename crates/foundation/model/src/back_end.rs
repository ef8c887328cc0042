use std::net::SocketAddr;

/// A server that others run, as they tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackEnd {
    /// Where it is.
    pub at: SocketAddr,
    /// Which one it is, where another one may get its address later: the uid of a Pod. [`None`]: its address says it.
    pub id: Option<String>,
    /// What people call it, if its address is not all: the name of a Pod.
    pub name: Option<String>,
    /// Whether it takes new flows.
    pub state: BackEndState,
    /// Its share of new flows against that of the others of its service, for schedulers that use weights.
    pub weight: u16,
}

/// Whether a server that others run takes new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackEndState {
    /// It does not serve at the moment, as if its checks did not pass.
    NotReady,
    /// It ends: it keeps its flows, and gets no new ones.
    Draining,
    /// It takes new flows.
    Serving,
}

impl BackEnd {
    /// The weight of one of which nothing else is said.
    pub const WEIGHT: u16 = 256;

    /// One of which nothing is known but its address: it serves.
    pub fn at(at: SocketAddr) -> BackEnd {
        BackEnd {
            at,
            id: None,
            name: None,
            state: BackEndState::Serving,
            weight: BackEnd::WEIGHT,
        }
    }

    /// Whether both are the same server. Where one has no id, the address decides.
    pub fn is_same(&self, at: SocketAddr, id: Option<&str>) -> bool {
        self.at == at && (self.id.is_none() || id.is_none() || self.id.as_deref() == id)
    }
}
