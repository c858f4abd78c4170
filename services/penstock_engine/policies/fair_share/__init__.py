"""Parts of the policy `fair`: the accounts of tenants, their queue, shares of steps and of room."""
