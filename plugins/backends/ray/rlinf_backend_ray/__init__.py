"""The execution engine `ray`: worker processes on the machines of a Ray cluster."""
