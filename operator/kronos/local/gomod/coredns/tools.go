//go:build tools

// Package tools names the commands that the local cluster builds, so that `go mod tidy` keeps what they need.
package tools

import (
	_ "github.com/coredns/coredns"
)
