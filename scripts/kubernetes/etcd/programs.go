//go:build programs

// Package programs names the store of a Kubernetes API server. It has a module of its own, because its dependencies
// need other versions.
package programs

import _ "go.etcd.io/etcd/server/v3"
