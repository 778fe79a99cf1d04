"""What training scripts of tests have in common, as text behind a line `model = ...`."""

STEPS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(400, 4))
def steps(n):
    for place, (x,) in enumerate(torch.utils.data.DataLoader(data, 4)):
        if place == n:
            return
        model(x).sum().backward()
        optimizer.step()
"""
"""`steps(n)` takes n steps of four samples."""
