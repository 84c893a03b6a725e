"""One-sided writes by RDMA: `transport` is the port's implementation, `easy` a layer over pyverbs for anybody."""
