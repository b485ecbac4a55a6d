"""What several benchmarks share: reports, small runs, hosts with lines of their own."""
