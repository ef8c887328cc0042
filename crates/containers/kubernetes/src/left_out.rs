//! What there is where the client of the API was left out of the build.

use crate::service::{Access, Cluster, Error, News, Right, Wanted};

impl Cluster {
    /// Whether the kubeconfig can be used.
    ///
    /// # Errors
    /// Always.
    pub fn check(&self) -> Result<(), Error> {
        Err(Error::LeftOut)
    }

    /// Asks the API server whether inco has these rights in a namespace.
    ///
    /// # Errors
    /// Always.
    pub fn access(&self, _namespace: Option<&str>, _rights: &[Right]) -> Result<Access, Error> {
        Err(Error::LeftOut)
    }
}

/// Nobody follows Services.
#[derive(Debug)]
pub struct Followers<K>(std::marker::PhantomData<K>);

impl<K> Default for Followers<K> {
    fn default() -> Self {
        Followers(std::marker::PhantomData)
    }
}

impl<K> Followers<K> {
    /// Follows no Service.
    ///
    /// # Errors
    /// There is one to follow.
    pub fn follow(&mut self, wanted: impl IntoIterator<Item = (K, Wanted)>) -> Result<(), Error> {
        wanted.into_iter().next().map_or(Ok(()), |_| Err(Error::LeftOut))
    }

    /// Nothing is new.
    pub fn news(&self) -> Vec<(K, News)> {
        Vec::new()
    }
}
