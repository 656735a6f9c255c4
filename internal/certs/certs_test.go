// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/x509"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// A certificate from a first start with a wrong clock is valid after the clock was corrected.
func TestPeriod_ContainsTheCorrectTime(t *testing.T) {
	now := time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC)
	for _, wrong := range []time.Time{
		time.Unix(0, 0), now.Add(-3 * time.Hour), now, now.Add(15 * time.Minute), now.Add(time.Hour), now.Add(3 * time.Hour), now.AddDate(12, 0, 0),
	} {
		from, until := period(wrong)
		NewWithT(t).Expect(now).To(And(BeTemporally(">", from), BeTemporally("<", until.AddDate(-1, 0, 0))), "issued at %s", wrong)
	}
}

func TestIssue_IsValidBeforeItWasIssued(t *testing.T) {
	g := NewWithT(t)
	authority, err := Issue(x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	leaf, err := Issue(x509.Certificate{DNSNames: []string{"localhost"}}, authority)
	g.Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	roots.AddCert(authority.Leaf)
	for _, at := range []time.Duration{-3 * time.Hour, -15 * time.Minute, 0, 3 * time.Hour} {
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost", CurrentTime: time.Now().Add(at)})
		g.Expect(err).NotTo(HaveOccurred(), "clock at %s", at)
	}
}
